"""One process of one plugin, as the supervisor holds it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from homeagent_sdk.errors import Unavailable
from plugin_host.launch import Launch
from plugin_host.plugin_log import PipeReader, PluginLog
from plugin_host.reaper import Exit, Reaper
from plugin_host.system import kill_group, send_signal
from plugin_host.token_line import Report, TokenLine
from plugin_host.zygote_client import Zygote

KILL_S = 5.0
"""How long the system may take to end a process that was killed."""

MintFor = Callable[[Launch], Awaitable[str]]


class Child(Protocol):
    """A running plugin process. :class:`PluginChild` is the real one; tests of the supervision have their own."""

    pid: int
    exited: asyncio.Future[Exit]
    """Done when the process has really ended, and its group with it."""

    @property
    def ready(self) -> asyncio.Future[Report]:
        """Done with the first report of the process."""

    @property
    def last_report(self) -> Report | None:
        """The newest report."""

    def start_time_left(self, limit_s: float) -> float:
        """Return how many seconds are left for it to report; waiting for the kernel does not count."""

    def errors(self) -> list[str]:
        """Return its last lines on stderr."""

    def terminate(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """Kill its whole process group."""

    async def close(self) -> None:
        """Let go of its pipes and its line, once it has ended."""


Launcher = Callable[[Launch], Awaitable[Child]]
"""Starts a process; raises :class:`Unavailable` if that failed for no fault of the plugin's."""


class PluginChild:
    """A process forked from the zygote; see :class:`Child`."""

    def __init__(
        self, pid: int, exited: asyncio.Future[Exit], line: TokenLine, log: PluginLog, pipes: list[int]
    ) -> None:
        self.pid = pid
        self.exited = exited
        self._line = line
        self._log = log
        self._readers = [
            PipeReader(pipe, log, stream) for pipe, stream in zip(pipes, ("stdout", "stderr"), strict=True)
        ]

    @property
    def ready(self) -> asyncio.Future[Report]:
        """Done with the first report."""
        return self._line.ready

    @property
    def last_report(self) -> Report | None:
        """The newest report."""
        return self._line.last

    def start_time_left(self, limit_s: float) -> float:
        """Return the seconds left for the first report."""
        if self._line.waits_for_kernel:
            return limit_s
        return self._line.moved_at + limit_s - asyncio.get_running_loop().time()

    def errors(self) -> list[str]:
        """Return the last lines on stderr."""
        return self._log.errors()

    def terminate(self) -> None:
        """Send SIGTERM to the plugin process alone; it tells its own children."""
        if not self.exited.done():
            send_signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the group, and the process itself, which may not lead its group yet."""
        if not self.exited.done():
            send_signal(self.pid, signal.SIGKILL)
            kill_group(self.pid)

    async def close(self) -> None:
        """Close pipes and line."""
        for reader in self._readers:
            reader.close()
        await self._line.close()


class ZygoteLauncher:
    """Starts plugin processes from the zygote.

    :param mint: gets a token for a launch from the kernel
    """

    def __init__(self, zygote: Zygote, reaper: Reaper, mint: MintFor, log_of: Callable[[str], PluginLog]) -> None:
        self._zygote = zygote
        self._reaper = reaper
        self._mint = mint
        self._log_of = log_of

    async def launch(self, launch: Launch) -> PluginChild:
        """Start a process.

        :raises Unavailable: there is no zygote, or the system cannot fork; trying again may help
        """
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            out_read, out_write = os.pipe()
            err_read, err_write = os.pipe()
        except OSError as error:
            raise Unavailable(f"no descriptors to start {launch.name}: {error.strerror}") from error
        try:
            pid = await self._zygote.launch(launch, [theirs.fileno(), out_write, err_write])
        except BaseException:
            ours.close()
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            theirs.close()
            os.close(out_write)
            os.close(err_write)
        exited = self._reaper.watch(pid)
        log = self._log_of(launch.name)
        log.forget_errors()
        ours.setblocking(False)
        line = TokenLine(ours, launch.name, launch.generation, lambda: self._mint(launch))
        return PluginChild(pid, exited, line, log, [out_read, err_read])
