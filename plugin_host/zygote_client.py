"""The supervisor's side of the zygote: starts it, asks it for processes, starts it again when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys

from homeagent_sdk.errors import Unavailable
from homeagent_sdk.logging import get_logger
from plugin_host.launch import HOST_MARK, Launch
from plugin_host.reaper import Reaper
from plugin_host.system import send_signal

_ANSWER_S = 20.0
_QUICK_DEATH_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_log = get_logger("zygote")


class Zygote:
    """One zygote after the other.

    :param mark: told to all processes below it, see :data:`~plugin_host.launch.HOST_MARK`
    """

    def __init__(self, reaper: Reaper, mark: str) -> None:
        self._reaper = reaper
        self._mark = mark
        self._socket: socket.socket | None = None
        self._is_up = asyncio.Event()
        self._lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None
        self.pid: int | None = None
        self.pending = 0
        """Launches under way: meanwhile there may be a child that nobody knows yet."""

    def start(self) -> None:
        """Start the zygote, and keep one running. Call it in the main thread: its end is the zygote's end."""
        self._keeper = asyncio.create_task(self._keep_one(), name="zygote")

    async def stop(self) -> None:
        """End the zygote; plugins outlive it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self.pid is not None:
            send_signal(self.pid, signal.SIGKILL)
        self._hang_up()

    async def launch(self, launch: Launch, descriptors: list[int]) -> int:
        """Start a process and return its pid.

        :raises Unavailable: the zygote died over it, or the system cannot fork
        """
        self.pending += 1
        try:
            async with self._lock, asyncio.timeout(_ANSWER_S):
                answer = await self._ask(launch.encode(), descriptors)
        except (TimeoutError, OSError) as error:
            # Whatever came of it: the line of that process is closed by the caller, so that it ends by itself.
            if self.pid is not None:
                send_signal(self.pid, signal.SIGKILL)
            raise Unavailable(f"the zygote did not start {launch.name}: {error!r}") from error
        finally:
            self.pending -= 1
        if "pid" not in answer:
            raise Unavailable(f"the system did not start {launch.name}: {answer.get('error')}")
        return int(answer["pid"])

    async def _ask(self, message: bytes, descriptors: list[int]) -> dict[str, str | int]:
        await self._is_up.wait()
        control = self._socket
        if control is None:
            raise ConnectionResetError("the zygote is gone")
        socket.send_fds(control, [message], descriptors)
        answer = await asyncio.get_running_loop().sock_recv(control, 4096)
        if not answer:
            raise ConnectionResetError("the zygote is gone")
        decoded: dict[str, str | int] = json.loads(answer)
        return decoded

    async def _keep_one(self) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            born = loop.time()
            self.pid = self._spawn()
            ended = await self._reaper.watch(self.pid)
            self._hang_up()
            _log.warning("the zygote ended; the plugins go on", pid=self.pid, how=ended.describe())
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S) if loop.time() - born < _QUICK_DEATH_S else _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)

    def _spawn(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            theirs.set_inheritable(True)
            # As this process: with -P nothing is imported from the folder that somebody happened to start it in.
            safe = ["-P"] if sys.flags.safe_path else []
            command = [sys.executable, *safe, "-m", "plugin_host.zygote", str(theirs.fileno()), str(os.getpid())]
            null = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
            # Its own group, so that Ctrl-C in a terminal does not reach it.
            pid = os.posix_spawn(sys.executable, command, self._environment(), file_actions=[null], setpgroup=0)
        finally:
            theirs.close()
        self._socket = ours
        self._is_up.set()
        return pid

    def _environment(self) -> dict[str, str]:
        """Return the environment of all plugins: this one's, without anything that might be a secret."""
        kept = {
            name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRET_WORDS)
        }
        return {**kept, HOST_MARK: self._mark, "MALLOC_ARENA_MAX": "2"}

    def _hang_up(self) -> None:
        self._is_up.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
