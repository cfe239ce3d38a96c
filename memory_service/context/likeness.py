"""How like the input each event of a context is: one measure for all of them, since two scales do not sort."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from memory_service.model import InContext
from memory_service.store.abc import Store
from memory_service.vectors.abc import Meanings
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter

_EVENT: Final = "event"


class Likeness:
    """Compares events with a text: by meaning if all of them have a vector, else by words.

    :param meanings: makes vectors of questions; None: there is no encoder
    """

    def __init__(self, store: Store, segmenter: Segmenter, meanings: Meanings | None) -> None:
        self._store = store
        self._segmenter = segmenter
        self._meanings = meanings

    async def of(self, text: str, events: Sequence[InContext]) -> Mapping[int, float]:
        """Return how like the text these events are, by number; those that are left out are like nothing."""
        if not events:
            return {}
        by_meaning = await self._by_meaning(text, events)
        return await self._by_words(text, events) if by_meaning is None else by_meaning

    async def _by_meaning(self, text: str, events: Sequence[InContext]) -> Mapping[int, float] | None:
        meaning = None if self._meanings is None else await self._meanings.of(text)
        if meaning is None:
            return None
        is_complete = await self._store.vectors.waiting() == 0
        numbers = [event.number for event in events]
        cosines = (await meaning.cosines({_EVENT: numbers})).get(_EVENT, {})
        # If none waits for its vector, those that have none have no words: they are like nothing.
        return cosines if is_complete or all(number in cosines for number in numbers) else None

    async def _by_words(self, text: str, events: Sequence[InContext]) -> Mapping[int, float]:
        asked = await asyncio.to_thread(terms, text, self._segmenter)
        return await self._store.events.relevance(asked, [event.number for event in events])
