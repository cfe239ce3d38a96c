"""Keeps the services running for as long as it is asked to, and stops them in order."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from homeagent.launcher.service import Service, ServiceSpec
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Invalid
from homeagent_sdk.process import EXIT_CONFIGURATION, EXIT_USAGE

_PR_SET_CHILD_SUBREAPER = 36
_KILLED_WITHIN_S = 1.0
_WORRYING_DELAY_S = 3.0
"""The delay from which on a person had better look into the log."""


class Supervisor:
    """The services of one launcher.

    :param specs: in the order in which they start; :meth:`stop` has its own
    :param environment: of every service; without secrets
    :param changed: called whenever a process id or a count changed
    :param tell: takes a line for the person who watches
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        *,
        environment: Mapping[str, str],
        log_dir: Path,
        changed: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self.services = {spec.name: Service(spec, log_dir) for spec in specs}
        self.refused: asyncio.Future[HomeAgentError] = asyncio.get_running_loop().create_future()
        """Done if a service says, before the system was ready once, that its configuration or environment is wrong."""
        self.was_ready = False
        self._environment = environment
        self._changed = changed
        self._tell = tell
        self._stopping = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all services at once, and from now on whichever dies."""
        # What a service leaves behind when it is killed becomes a child of this process, and cannot be missed at stop.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        for service in self.services.values():
            self._start(service)
        self._keepers = [asyncio.create_task(self._keep(service)) for service in self.services.values()]

    async def stop(self, order: Sequence[str]) -> None:
        """Stop the services one after another, each within its own time; whatever is left then is killed."""
        self._stopping.set()
        await asyncio.gather(*self._keepers)
        for name in order:
            service = self.services[name]
            if service.pid is None:
                continue
            service.send(signal.SIGTERM)
            try:
                await asyncio.wait_for(service.gone.wait(), service.spec.stop_within_s)
            except TimeoutError:
                self._tell(text("command.up_killed", service=name, seconds=service.spec.stop_within_s))
                service.send(signal.SIGKILL)
        await self.kill()

    async def kill(self) -> None:
        """Kill every service and whatever they left behind, and wait until they are gone."""
        self._stopping.set()
        end = asyncio.get_running_loop().time() + _KILLED_WITHIN_S
        while (left := self._left()) and asyncio.get_running_loop().time() < end:
            for pid in left:
                _kill(pid)
            await asyncio.sleep(0.005)
            self._reap()

    def _left(self) -> set[int]:
        """Return the ids of what runs still: the services, and every child that was adopted from one."""
        return _children() | {service.pid for service in self.services.values() if service.pid is not None}

    def _start(self, service: Service) -> None:
        try:
            service.start(self._environment)
        except OSError as error:
            # Out of processes or memory, most likely: as good as a service that died at once.
            self._tell(text("command.up_cannot_start", service=service.spec.name, reason=error.strerror))
            service.gone.set()
        self._changed()

    async def _keep(self, service: Service) -> None:
        while not await _happens_within(self._stopping, service.gone):
            delay = service.next_delay_s()
            self._report(service, delay)
            self._changed()
            try:
                await asyncio.wait_for(self._stopping.wait(), delay)
            except TimeoutError:
                self._start(service)

    def _report(self, service: Service, delay: float) -> None:
        name, code = service.spec.name, service.exit_code
        if code in (EXIT_USAGE, EXIT_CONFIGURATION) and not self.was_ready and not self.refused.done():
            self.refused.set_result(Invalid(service.last_words() or text("command.up_refused", service=name)))
            return
        how = text("command.up_signal", number=-code) if code is not None and code < 0 else f"{code}"
        words = service.last_words() if code is not None and code > 0 else ""
        line = text("command.up_restarting", service=name, how=how, seconds=int(delay))
        self._tell(f"{line} {words}".rstrip())
        if delay == _WORRYING_DELAY_S:
            self._tell(text("command.up_keeps_failing", service=name))

    def _reap(self) -> None:
        """Notice every child that has ended; those that were adopted are only cleared away."""
        for service in self.services.values():
            service.poll()
        ours = {service.pid for service in self.services.values()}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in ours:
                for service in self.services.values():
                    service.poll()
            else:
                os.waitpid(ended.si_pid, os.WNOHANG)


async def _happens_within(stopping: asyncio.Event, gone: asyncio.Event) -> bool:
    """Wait for either event; return whether it was ``stopping``."""
    waits = [asyncio.create_task(stopping.wait()), asyncio.create_task(gone.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return stopping.is_set()


def _children() -> set[int]:
    """Return the ids of all children of this process; empty where the system does not tell."""
    found: set[int] = set()
    try:
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as children:
                found.update(map(int, children.read().split()))
    except FileNotFoundError:
        return found
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
