"""Ends what plugins leave behind: processes that outlived their plugin, even in a session of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

from homeagent_sdk.logging import get_logger
from plugin_host import orphans
from plugin_host.reaper import Reaper
from plugin_host.system import kill_group, send_signal
from plugin_host.zygote_client import Zygote

_SETTLE_S = 0.02
_ROUNDS = 10
_log = get_logger("sweeper")


class Sweeper:
    """Looks for orphans whenever a plugin process has ended.

    As the subreaper the supervisor is the parent of every orphan, so an orphan is a child that nobody answers for.

    :param living: returns the marks of the plugins that have a process
    """

    def __init__(self, reaper: Reaper, zygote: Zygote, living: Callable[[], set[str]]) -> None:
        self._reaper = reaper
        self._zygote = zygote
        self._living = living
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="sweeper")

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Look soon."""
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for _ in range(_ROUNDS):
                # Children of those that are killed become ours in turn, hence the rounds.
                await asyncio.sleep(_SETTLE_S)
                if self._zygote.pending:
                    self._wanted.set()
                elif not await self._sweep():
                    break

    async def _sweep(self) -> bool:
        """Kill the orphans that there are now; True if there were any."""
        found = await asyncio.to_thread(orphans.left_behind, os.getpid(), self._reaper.watched, self._living())
        if self._zygote.pending:
            return bool(found)
        killed = []
        for pid in found:
            now = orphans.look_at(pid)
            if now is not None and now.parent == os.getpid() and pid not in self._reaper.watched:
                send_signal(pid, signal.SIGKILL)
                if now.session == pid:
                    kill_group(pid)
                killed.append(pid)
        if killed:
            _log.warning("killed what a plugin left behind", pids=killed)
        return bool(killed)


def kill_all(find: Callable[[], list[int]]) -> list[int]:
    """Kill what ``find`` returns until it returns nothing, a few times at most. Blocks: call it in a thread."""
    killed: list[int] = []
    for _ in range(_ROUNDS):
        found = find()
        if not found:
            break
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        killed += found
    return killed
