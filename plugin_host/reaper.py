"""Waits for processes: the real end of each, never the end of a pipe that a grandchild may hold."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import OrderedDict
from dataclasses import dataclass

from homeagent_sdk.catalogue import text
from plugin_host.system import kill_group

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: with a code, or by a signal."""

    code: int | None = None
    signal: int | None = None

    def describe(self) -> str:
        """Say it to a person."""
        if self.signal is None:
            return text("host.exited", code=self.code)
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = str(self.signal)
        return text("host.killed_by", signal=name)


class Reaper:
    """Collects every child of this process; as the subreaper that is every orphan among its descendants too.

    When the leader of a watched process group ends, the rest of its group is killed, before the leader is reaped: until
    then its number cannot belong to anyone else.
    """

    def __init__(self) -> None:
        self._watched: dict[int, asyncio.Future[Exit]] = {}
        self._unclaimed: OrderedDict[int, Exit] = OrderedDict()

    def start(self) -> None:
        """Begin to collect; call it in the main thread, with the loop running."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)
        self.collect()

    def stop(self) -> None:
        """Stop collecting."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int) -> asyncio.Future[Exit]:
        """Return a future of the end of a child, the leader of its process group; it may be over already."""
        future: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        ended = self._unclaimed.pop(pid, None)
        if ended is not None:
            kill_group(pid)
            future.set_result(ended)
        else:
            self._watched[pid] = future
        return future

    @property
    def watched(self) -> frozenset[int]:
        """The pids that are waited for."""
        return frozenset(self._watched)

    def collect(self) -> None:
        """Reap all children that have ended. Called on SIGCHLD, of which one may stand for many."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            future = self._watched.pop(ended.si_pid, None)
            if future is not None:
                kill_group(ended.si_pid)
            os.waitid(os.P_PID, ended.si_pid, os.WEXITED | os.WNOHANG)
            by_signal = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            how = Exit(signal=ended.si_status) if by_signal else Exit(code=ended.si_status)
            if future is None:
                self._remember(ended.si_pid, how)
            elif not future.done():
                future.set_result(how)

    def _remember(self, pid: int, how: Exit) -> None:
        self._unclaimed[pid] = how
        if len(self._unclaimed) > _REMEMBERED:
            self._unclaimed.popitem(last=False)
