"""Keeps every stored item's vector: encodes what has none yet, holds them all in memory, and compares."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import structlog

from homeagent_sdk.errors import HomeAgentError
from memory_service.encoders.abc import Space, Vectors
from memory_service.encoders.codes import to_codes
from memory_service.encoders.index import VectorIndex
from memory_service.model import ToEmbed
from memory_service.store.abc import VectorStore
from memory_service.vectors.abc import QUESTION_PATIENCE_S

BATCH: Final = 64
"""So many items are encoded between two commits."""

_MOST_ASKED: Final = 64
"""So many questions keep their vectors until they are stored as what was said."""

_GATHER_S: Final = 0.5
"""How long what is new waits for company: the next question of a lively conversation is not held up by it."""

_PAUSE_S: Final = (1.0, 60.0)
_LOAD_ROWS: Final = 4_096
_STORED_AS: Final = {"event": "event", "note": "document", "fact": "relation"}
_ENOUGH: Final = {"use": 0.45}
_NEVER_ENOUGH: Final = 2.0
"""Where it is not known from which cosine on two texts of a space mean the same, meaning alone is never a record."""

_log = structlog.get_logger("vectors")


class Encoding(Protocol):
    """Makes vectors of texts; see :class:`memory_service.encoders.client.EncoderWorker`."""

    async def encode(self, texts: Sequence[str], *, urgent: bool = False) -> tuple[Space, Vectors]:
        """Return the space and one unit vector for each text, zero for a text without words.

        :param urgent: a question, before which nothing else is encoded
        :raises Unavailable: the encoder is not there now
        """

    def warm(self) -> bool:
        """Whether it can encode at once; if not, it begins to load."""

    def health(self) -> dict[str, Any]:
        """Say how it is."""


class VectorKeeper:
    """Implements :class:`memory_service.vectors.abc.Meanings`, and runs beside the service.

    Whatever is stored stands in the store's queue until it has a vector, so that nothing is lost by a crash. What
    fails is tried again, after pauses of 1 to 60 seconds.
    """

    def __init__(self, store: VectorStore, encoder: Encoding) -> None:
        self._store = store
        self._encoder = encoder
        self._space: Space | None = None
        self._number = 0
        self._indexes: dict[str, VectorIndex] = {}
        self._asked: dict[str, Vectors] = {}
        self._new = asyncio.Event()
        self._looked = asyncio.Event()
        self._loaded = False
        self._is_idle = False
        self._failure: str | None = None

    def notify(self) -> None:
        """Something was stored."""
        self._new.set()

    async def run(self) -> None:
        """Load what is stored, then keep up; until cancelled."""
        pause_s = _PAUSE_S[0]
        self._new.set()
        while True:
            self._is_idle = self._loaded and not self._new.is_set()
            await self._new.wait()
            self._is_idle = False
            if self._loaded:
                await asyncio.sleep(_GATHER_S)
            self._new.clear()
            try:
                await self._catch_up()
                self._failure, pause_s = None, _PAUSE_S[0]
                self._looked.set()
            except HomeAgentError as error:
                self._failure = error.message
                _log.warning("vectors have to wait", reason=str(error), again_in_s=pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_S[1])
                self._new.set()

    async def of(self, text: str, patience_s: float = QUESTION_PATIENCE_S) -> StoredMeaning | None:
        """Return a question's meaning; see :class:`memory_service.vectors.abc.Meanings`."""
        is_patient = patience_s > QUESTION_PATIENCE_S
        if not is_patient and not (self._loaded and self._encoder.warm()):
            return None
        try:
            async with asyncio.timeout(patience_s):
                await self._looked.wait()
                if not self._loaded:
                    return None
                space, vectors = await self._encoder.encode([text], urgent=True)
        except TimeoutError:
            _log.warning("a question is answered by words alone", waited_s=patience_s)
            return None
        except HomeAgentError as error:
            _log.warning("a question has no vector", reason=str(error))
            return None
        if space != self._space or not vectors[0].any():
            return None
        self._remember(text, vectors[0])
        return StoredMeaning(vectors[0], self._indexes, _ENOUGH.get(space.encoder, _NEVER_ENOUGH))

    def forget(self, kind: str, numbers: Collection[int]) -> None:
        """Drop the vectors of items that were forgotten."""
        self._asked.clear()
        index = self._indexes.get(kind)
        if index is not None:
            index.remove(numbers)

    def health(self) -> dict[str, Any]:
        """Say how far it is."""
        return {
            "space": self._space.fingerprint if self._space else None,
            "vectors": {kind: len(index) for kind, index in self._indexes.items()},
            "loaded": self._loaded,
            "is_idle": self._is_idle,
            "reason": self._failure,
            "encoder": self._encoder.health(),
        }

    async def _catch_up(self) -> None:
        while waiting := await self._store.queued(BATCH):
            texts = [text for item in waiting for text in item.parts.values()]
            space, vectors = await self._encode(texts)
            await self._enter(space)
            coded = list(_by_item(waiting, to_codes(vectors)))
            stored = await self._store.put(self._number, coded)
            codes_of = {(item.kind, item.number): codes for item, codes in coded}
            for kind in {item.kind for item in stored}:
                # A note that was written anew has rows of what it said before.
                self._indexes[kind].remove([item.number for item in stored if item.kind == kind])
            for item in stored:
                codes = codes_of[item.kind, item.number]
                self._add(item.kind, [item.number] * len(codes), [item.audience] * len(codes), list(codes.values()))
        if not self._loaded:
            await self._open_last()

    async def _encode(self, texts: Sequence[str]) -> tuple[Space, Vectors]:
        """Encode texts; a message was a question a moment ago, and then has its vector."""
        known = {text: self._asked.pop(text) for text in set(texts) if text in self._asked}
        space, vectors = await self._encoder.encode([text for text in texts if text not in known] or [""])
        if not known:
            return space, vectors
        if space != self._space:
            return await self._encoder.encode(texts)
        encoded = iter(vectors)
        return space, np.stack([known[text] if text in known else next(encoded) for text in texts])

    def _remember(self, text: str, vector: Vectors) -> None:
        if len(self._asked) >= _MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        self._asked[text] = vector

    async def _open_last(self) -> None:
        """Load the vectors of an earlier run without waking the encoder: the store knows in which space they are."""
        last = await self._store.last_space()
        if last is not None:
            await self._enter(Space(*last))

    async def _enter(self, space: Space) -> None:
        if space == self._space:
            return
        self._number = await self._store.open_space(space.fingerprint, space.encoder, space.dimensions)
        self._space, self._loaded = space, False
        self._asked.clear()
        self._indexes = {kind: VectorIndex(space.dimensions) for kind in _STORED_AS.values()}
        after = 0
        while rows := await self._store.load(self._number, after, _LOAD_ROWS):
            after = rows[-1][0]
            for kind in self._indexes:
                mine = [row for row in rows if row[1] == kind]
                if mine:
                    self._add(kind, [row[2] for row in mine], [row[3] for row in mine], [row[5] for row in mine])
        self._loaded = True
        _log.info("vectors loaded", space=space.fingerprint, events=len(self._indexes["event"]))

    def _add(self, kind: str, items: list[int], audiences: list[int], codes: list[bytes]) -> None:
        if items:
            self._indexes[kind].add(items, audiences, codes)


class StoredMeaning:
    """Implements :class:`memory_service.vectors.abc.Meaning` on the indexes in memory."""

    def __init__(self, vector: Vectors, indexes: Mapping[str, VectorIndex], enough: float) -> None:
        self._vector = vector
        self._indexes = indexes
        self.enough = enough

    async def nearest(
        self, audiences: Collection[int] | None, counts: Mapping[str, int]
    ) -> Mapping[str, Mapping[int, float]]:
        """Search; see :class:`memory_service.vectors.abc.Meaning`."""
        return {
            kind: dict(await _in_thread(self._index(kind), lambda index, n=n: index.search(self._vector, audiences, n)))
            for kind, n in counts.items()
        }

    async def cosines(self, numbers: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, float]]:
        """Compare; see :class:`memory_service.vectors.abc.Meaning`."""
        return {kind: self._index(kind).cosines(self._vector, wanted) for kind, wanted in numbers.items()}

    def _index(self, kind: str) -> VectorIndex:
        return self._indexes[_STORED_AS[kind]]


_SMALL: Final = 2_000


async def _in_thread(index: VectorIndex, search: Any) -> Any:
    """Search small indexes at once, which takes less time than a thread's wake-up."""
    return search(index) if len(index) <= _SMALL else await asyncio.to_thread(search, index)


def _by_item(items: Sequence[ToEmbed], codes: Sequence[bytes]) -> Iterator[tuple[ToEmbed, Mapping[str, bytes]]]:
    start = 0
    for item in items:
        yield item, dict(zip(item.parts, codes[start : start + len(item.parts)], strict=True))
        start += len(item.parts)
