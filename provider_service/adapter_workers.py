"""The processes that run adapters: kept warm, replaced when they hang or die."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import structlog

from homeagent_sdk.errors import Overloaded
from provider_service.adapter_worker import AdapterWorker
from provider_service.errors import AdapterError

CALL_LIMIT_S = 5.0
"""Wall-clock time of one operation; the worker's own limit on processor time is lower."""

MAX_WORKERS = 2
MAX_WAITING = 256
SECOND_WORKER_AFTER_S = 0.5
"""How long an operation waits for a busy worker before another is started."""

SPARE_WORKER_IDLE_S = 60.0

_log = structlog.get_logger("provider_service.adapters")


@dataclass(slots=True)
class WorkerCounters:
    """What happened to workers since the start."""

    started: int = 0
    killed: int = 0
    crashed: int = 0


@dataclass(slots=True)
class AdapterWorkers:
    """Runs operations of adapters in worker processes; one operation at a time in each.

    An operation that hangs costs its own call: its worker is killed and the others go on in the next one.

    :param bundled: folder of the adapters that come with HomeAgent
    :param user: folder of the user's own, which win
    """

    bundled: Path
    user: Path
    call_limit_s: float = CALL_LIMIT_S
    max_workers: int = MAX_WORKERS
    counters: WorkerCounters = field(default_factory=WorkerCounters)
    _all: list[AdapterWorker] = field(default_factory=list)
    _idle: list[AdapterWorker] = field(default_factory=list)
    _ending: list[asyncio.subprocess.Process] = field(default_factory=list)
    _waiting: deque[asyncio.Future[AdapterWorker]] = field(default_factory=deque)
    _starting: asyncio.Task[None] | None = None
    _retiring: asyncio.TimerHandle | None = None
    _is_closed: bool = False

    async def perform(self, operation: str, adapter: str, **arguments: Any) -> dict[str, Any]:
        """Carry out one operation of ``lua_worker`` and return its answer.

        :raises AdapterError: the script failed, hung or is missing, or the upstream sent no JSON
        :raises Overloaded: too many operations wait
        """
        frame = msgpack.packb({"op": operation, "adapter": adapter, **arguments})
        answer: dict[str, Any] = msgpack.unpackb(await self._exchange(frame, adapter))
        for level, message in answer.get("log") or ():
            _log.info("adapter says", adapter=adapter, level_said=level, message=message)
        if not answer["ok"]:
            raise AdapterError(answer["message"], is_upstream=answer["upstream"])
        return answer

    async def warm(self, adapter: str) -> None:
        """Have a worker with this adapter loaded; a script that does not load is reported when it is used."""
        with suppress(AdapterError):
            await self.perform("load", adapter)

    def process_ids(self) -> list[int]:
        """Return the workers that run."""
        return [worker.process.pid for worker in self._all if worker.process is not None]

    async def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        if self._retiring is not None:
            self._retiring.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for worker in list(self._all):
            self._forget(worker)
            worker.kill()
        for process in self._ending:
            await process.wait()

    async def _exchange(self, frame: bytes, adapter: str) -> bytes:
        """Send a frame to a worker; if the worker dies under it, to another, since operations change nothing."""
        for _ in range(2):
            worker = self._idle.pop() if self._idle else await self._wait_for_worker()
            try:
                return await worker.ask(frame, self.call_limit_s)
            except TimeoutError as error:
                self.counters.killed += 1
                _log.warning("adapter hung, its worker is replaced", adapter=adapter)
                raise AdapterError(f"{adapter}.lua did not return within {self.call_limit_s:g} s") from error
            except ConnectionError:
                continue
        raise AdapterError(f"the worker process of {adapter}.lua died")

    async def _wait_for_worker(self) -> AdapterWorker:
        if self._is_closed:
            raise AdapterError("the service is stopping")
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded("too many calls wait for an adapter", hint="wait a moment and try again")
        waiter: asyncio.Future[AdapterWorker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if not self._all:
            self._start_one()
        else:
            asyncio.get_running_loop().call_later(SECOND_WORKER_AFTER_S, self._help_out, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._freed(waiter.result())
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _help_out(self, waiter: asyncio.Future[AdapterWorker]) -> None:
        if not waiter.done() and len(self._all) < self.max_workers:
            self._start_one()

    def _freed(self, worker: AdapterWorker) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)
        if len(self._all) > 1 and self._retiring is None:
            loop = asyncio.get_running_loop()
            self._retiring = loop.call_later(SPARE_WORKER_IDLE_S, self._retire_spares)

    def _retire_spares(self) -> None:
        self._retiring = None
        now = asyncio.get_running_loop().time()
        for worker in [each for each in self._idle if now - each.idle_since >= SPARE_WORKER_IDLE_S]:
            if len(self._all) > 1:
                self._forget(worker)
                worker.kill()
        if len(self._all) > 1:
            loop = asyncio.get_running_loop()
            self._retiring = loop.call_later(SPARE_WORKER_IDLE_S, self._retire_spares)

    def _lost(self, worker: AdapterWorker) -> None:
        if worker in self._all and not worker.was_killed:
            self.counters.crashed += 1
        self._forget(worker)
        if self._waiting and not self._all and not self._is_closed:
            self._start_one()

    def _forget(self, worker: AdapterWorker) -> None:
        if worker not in self._all:
            return
        self._all.remove(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._ending = [process for process in self._ending if process.returncode is None]
        if worker.process is not None:
            self._ending.append(worker.process)

    def _start_one(self) -> None:
        if self._starting is None and not self._is_closed:
            self._starting = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        worker = AdapterWorker(self._freed, self._lost)
        try:
            await worker.start(self.bundled, self.user)
        except (OSError, TimeoutError) as error:
            _log.error("cannot start an adapter worker", error=repr(error))
            self._refuse_waiting(AdapterError(f"cannot start a worker process for adapters: {error}"))
        else:
            self.counters.started += 1
            self._all.append(worker)
            self._freed(worker)
        finally:
            self._starting = None

    def _refuse_waiting(self, error: AdapterError) -> None:
        if self._all:
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)
