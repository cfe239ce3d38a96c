"""The processes that run adapters, seen from the service: kept warm, replaced when they hang or die."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import structlog

from homeagent_sdk.errors import Overloaded
from provider_service.errors import AdapterError

CALL_LIMIT_S = 5.0
"""Wall-clock time of one operation; the worker's own limit on processor time is lower."""

START_LIMIT_S = 20.0
MAX_WORKERS = 2
MAX_WAITING = 256
SECOND_WORKER_AFTER_S = 0.5
"""How long an operation waits for a busy worker before another is started."""

SPARE_WORKER_IDLE_S = 60.0
MAX_FRAME_BYTES = 128 * 1024 * 1024

_log = structlog.get_logger("provider_service.adapters")
_PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(slots=True)
class _Worker:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def kill(self) -> None:
        self.writer.transport.abort()
        with suppress(ProcessLookupError):
            self.process.kill()

    async def exchange(self, frame: bytes) -> dict[str, Any]:
        self.writer.write(struct.pack("<I", len(frame)) + frame)
        if self.writer.transport.get_write_buffer_size():
            await self.writer.drain()
        (length,) = struct.unpack("<I", await self.reader.readexactly(4))
        answer: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(length))
        return answer


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
    _idle: list[_Worker] = field(default_factory=list)
    _all: list[_Worker] = field(default_factory=list)
    _starting: int = 0
    _waiting: deque[asyncio.Future[_Worker]] = field(default_factory=deque)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _is_closed: bool = False

    async def perform(self, operation: str, adapter: str, **arguments: Any) -> dict[str, Any]:
        """Carry out one operation of ``lua_worker`` and return its answer.

        :raises AdapterError: the script failed, hung or is missing, or the upstream sent no JSON
        :raises Overloaded: too many operations wait
        """
        frame = msgpack.packb({"op": operation, "adapter": adapter, **arguments})
        # The exchange outlives a cancelled caller: an answer left unread would be taken for the next one.
        task = asyncio.ensure_future(self._perform(frame, adapter))
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        answer = await asyncio.shield(task)
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
        return [worker.process.pid for worker in self._all]

    async def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        workers, self._all, self._idle = self._all, [], []
        for worker in workers:
            worker.kill()
        for worker in workers:
            await worker.process.wait()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def _perform(self, frame: bytes, adapter: str) -> dict[str, Any]:
        for attempt in (1, 2):
            worker = await self._acquire()
            try:
                async with asyncio.timeout(self.call_limit_s):
                    answer = await worker.exchange(frame)
            except TimeoutError as error:
                self.counters.killed += 1
                self._discard(worker)
                _log.warning("adapter hung, its worker was replaced", adapter=adapter)
                raise AdapterError(f"{adapter}.lua did not return within {self.call_limit_s:g} s") from error
            except (asyncio.IncompleteReadError, OSError) as error:
                self.counters.crashed += 1
                self._discard(worker)
                if attempt == 2 or self._is_closed:
                    raise AdapterError(f"the worker process of {adapter}.lua died") from error
            except BaseException:
                self._discard(worker)
                raise
            else:
                self._release(worker)
                return answer
        raise AssertionError("unreachable")

    async def _acquire(self) -> _Worker:
        if self._idle:
            return self._idle.pop()
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded("too many calls wait for an adapter", hint="wait a moment and try again")
        waiter: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            if not self._all and not self._starting:
                self._start_one()
            else:
                with suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(waiter), SECOND_WORKER_AFTER_S)
                if not self._starting and len(self._all) < self.max_workers:
                    self._start_one()
            return await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _release(self, worker: _Worker) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)
        if len(self._all) > 1:
            asyncio.get_running_loop().call_later(SPARE_WORKER_IDLE_S, self._retire_spare, worker)

    def _retire_spare(self, worker: _Worker) -> None:
        if len(self._all) > 1 and worker in self._idle and worker is not self._idle[-1]:
            self._discard(worker)

    def _discard(self, worker: _Worker) -> None:
        worker.kill()
        if worker in self._all:
            self._all.remove(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        if self._waiting and not self._all and not self._starting and not self._is_closed:
            self._start_one()

    def _start_one(self) -> None:
        self._starting += 1
        task = asyncio.ensure_future(self._start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        try:
            async with asyncio.timeout(START_LIMIT_S):
                worker = await self._spawn()
        except (OSError, TimeoutError) as error:
            self._starting -= 1
            _log.error("cannot start an adapter worker", error=str(error))
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(AdapterError(f"cannot start a worker process for adapters: {error}"))
            return
        self._starting -= 1
        self.counters.started += 1
        self._all.append(worker)
        self._release(worker)

    async def _spawn(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            environment["PYTHONPATH"] = os.pathsep.join(
                [str(Path(__file__).parent.parent), *filter(None, [environment.get("PYTHONPATH")])]
            )
            folders = [str(self.bundled), str(self.user)]
            arguments = ["-m", "provider_service.lua_worker", str(theirs.fileno()), *folders, str(os.getpid())]
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_FRAME_BYTES)
        return _Worker(process, reader, writer)
