"""The encoder's process, seen from the service: started when it is needed, stopped when it is not."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import structlog

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Overloaded, Unavailable
from homeagent_sdk.process import child_environment
from memory_service.encoders.abc import MAX_CHARACTERS, Space, Vectors
from memory_service.encoders.registry import DEFAULT
from memory_service.encoders.worker import HEAD

_BATCH_TEXTS: Final = 8
_BATCH_BYTES: Final = 800
"""A question waits at most for the batch under way: 20 ms on a busy core. A byte of UTF-8 costs the same in Chinese and
in English, a character does not. A single text may be longer, up to ``MAX_CHARACTERS``. Larger batches are a tenth
faster for each text, no more."""

_MOST_WAITING: Final = 1_024
_START_LIMIT_S: Final = 60.0
_ANSWER_LIMIT_S: Final = 30.0
_STOP_LIMIT_S: Final = 2.0
_PAUSES_S: Final = (1.0, 2.0, 3.0, 5.0, 10.0)
_SOUND_AFTER_S: Final = 60.0
"""What has run so long starts again after the shortest pause when it dies."""

IDLE_S: Final = 900.0
_log = structlog.get_logger("encoder")


@dataclass(slots=True, eq=False)
class _Job:
    texts: Sequence[str]
    done: asyncio.Future[tuple[Space, Vectors]] = field(default_factory=lambda: asyncio.Future())


class EncoderWorker:
    """Encodes texts in a process of its own; questions before everything else.

    The process starts with the first use, ends after a quarter of an hour without any, and starts again after it died,
    with pauses of 1 to 10 seconds. What was under way then fails and is for the caller to repeat.

    :param cache_dir: where the encoder may keep files
    :param encoder: its name in :data:`memory_service.encoders.registry.ENCODERS`
    """

    def __init__(self, cache_dir: Path, encoder: str = DEFAULT, *, idle_s: float = IDLE_S) -> None:
        self._cache_dir = cache_dir
        self._name = encoder
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._space: Space | None = None
        self._reason = ""
        self._urgent: deque[_Job] = deque()
        self._bulk: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._deaths = 0
        self._deaths_in_a_row = 0
        self._started_at = 0.0
        self._not_before = 0.0
        self._closed = False

    async def encode(self, texts: Sequence[str], *, urgent: bool = False) -> tuple[Space, Vectors]:
        """Return the space and one vector of length 1 for each text; zeros for one without words.

        :param urgent: a question; it waits for no more than the batch under way
        :raises Unavailable: the process died, pauses after a death, or was closed
        :raises Overloaded: too many batches wait already
        """
        if self._closed:
            raise Unavailable(text("memory.closing"), hint=text("memory.closing_hint"))
        jobs = [_Job(batch) for batch in _batches(texts or [""])]
        waiting = self._urgent if urgent else self._bulk
        if len(waiting) + len(jobs) > _MOST_WAITING:
            raise Overloaded(text("memory.encoder_busy", count=len(waiting)), hint=text("memory.try_later_hint"))
        waiting.extend(jobs)
        self._turn()
        done = await asyncio.gather(*(job.done for job in jobs))
        spaces = {space for space, _ in done}
        if len(spaces) > 1:
            raise Unavailable(text("memory.encoder_died"), hint=text("memory.encoder_died_hint"))
        return spaces.pop(), np.concatenate([vectors for _, vectors in done])[: len(texts)]

    def warm(self) -> bool:
        """Whether it can encode at once; if not, it begins to load."""
        if self._space is not None:
            return True
        if not self._closed:
            self._turn()
        return False

    def health(self) -> dict[str, Any]:
        """Say how it is: ``running``, ``stopped`` (nobody needs it) or ``restarting``, and which encoder it is."""
        waits = asyncio.get_running_loop().time() < self._not_before
        return {
            "state": "running" if self._space else "restarting" if waits else "stopped",
            "encoder": self._space.encoder if self._space else self._name,
            "fingerprint": self._space.fingerprint if self._space else None,
            "dimensions": self._space.dimensions if self._space else None,
            "pid": self._process.pid if self._process else None,
            "deaths": self._deaths,
            "reason": self._reason,
            "waiting": len(self._urgent) + len(self._bulk),
        }

    async def close(self) -> None:
        """Stop the process for good; what waits fails."""
        self._closed = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail_waiting()
        await self._stop()

    def _turn(self) -> None:
        self._wake.set()
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._serve(), name="encoder")

    async def _serve(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    await self._wake.wait()
            except TimeoutError:
                await self._stop()
                await self._wake.wait()
            self._wake.clear()
            if not await self._started():
                self._fail_waiting()
                continue
            while job := self._next():
                if not job.done.cancelled():
                    await self._answer(job)

    def _next(self) -> _Job | None:
        for waiting in (self._urgent, self._bulk):
            if waiting:
                return waiting.popleft()
        return None

    async def _answer(self, job: _Job) -> None:
        try:
            space, vectors = await self._ask(job.texts)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self._died(error)
            if not job.done.done():
                job.done.set_exception(_died())
            self._fail_waiting()
            return
        if not job.done.done():
            job.done.set_result((space, vectors))

    async def _ask(self, texts: Sequence[str]) -> tuple[Space, Vectors]:
        if self._process is None or self._space is None:
            raise EOFError("the process is gone")
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        frame = msgpack.packb(list(texts), unicode_errors="surrogatepass")
        stdin.write(HEAD.pack(len(frame)) + frame)
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            answer = await _frame(stdout)
        return self._space, np.frombuffer(answer, np.float32).reshape(len(texts), self._space.dimensions)

    async def _started(self) -> bool:
        if self._space is not None:
            return True
        if asyncio.get_running_loop().time() < self._not_before:
            return False
        try:
            await self._start()
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self._died(error)
            return False
        return True

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "memory_service.encoders.worker"),
            *(self._name, str(self._cache_dir), str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=child_environment(Path(__file__).parents[2]),
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(_START_LIMIT_S):
            greeting = msgpack.unpackb(await _frame(self._process.stdout))
        self._reason = greeting["reason"]
        self._space = Space(greeting["encoder"], greeting["fingerprint"], greeting["dimensions"])
        self._started_at = asyncio.get_running_loop().time()
        if self._reason:
            _log.error("another encoder had to be used", encoder=self._space.encoder, reason=self._reason)
        else:
            _log.info("encoder started", fingerprint=self._space.fingerprint, pid=self._process.pid)

    async def _died(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if self._space is not None and now - self._started_at >= _SOUND_AFTER_S:
            self._deaths_in_a_row = 0
        pause_s = _PAUSES_S[min(self._deaths_in_a_row, len(_PAUSES_S) - 1)]
        self._deaths += 1
        self._deaths_in_a_row += 1
        self._not_before = now + pause_s
        _log.warning("the encoder died", reason=repr(error), again_in_s=pause_s)
        await self._stop()

    async def _stop(self) -> None:
        process, self._process, self._space = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _fail_waiting(self) -> None:
        for waiting in (self._urgent, self._bulk):
            while waiting:
                job = waiting.popleft()
                if not job.done.done():
                    job.done.set_exception(_died())


def _died() -> Unavailable:
    return Unavailable(text("memory.encoder_died"), hint=text("memory.encoder_died_hint"))


async def _frame(stream: asyncio.StreamReader) -> bytes:
    (length,) = HEAD.unpack(await stream.readexactly(HEAD.size))
    return await stream.readexactly(length)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for each in texts:
        cut = each[:MAX_CHARACTERS]
        more = len(cut.encode("utf-8", "surrogatepass"))
        if batch and (len(batch) == _BATCH_TEXTS or size + more > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(cut)
        size += more
    if batch:
        yield batch
