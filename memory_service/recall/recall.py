"""Recall by words: question → terms → candidates → order → verdict → budget."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from memory_service.model import Recalled
from memory_service.recall.budget import within
from memory_service.recall.ranking import is_no_record, rank
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter

CANDIDATES = 32
"""So many events are ranked in full; the store chooses them by BM25."""


class Recall:
    """Answers questions out of a store."""

    def __init__(self, store: Store, segmenter: Segmenter) -> None:
        self._store = store
        self._segmenter = segmenter

    async def recall(
        self,
        query: str,
        audience: Collection[str] | None,
        *,
        exclude: Collection[str] = (),
        limit: int = 8,
        budget_tokens: int | None = None,
    ) -> Recalled:
        """Find the events that belong to a question.

        Hits are ranked even if there is no record, so that the caller can show near misses as what they are.

        :param audience: who will read the answer: only events that all of them may see; None: all events
        :param exclude: ids of events not wanted, such as those already in the prompt
        :param budget_tokens: how much the hits may take together; None: no limit
        :raises Unavailable: the store cannot be read
        """
        asked = await asyncio.to_thread(terms, query, self._segmenter)
        if not asked:
            return Recalled((), no_record=True)
        search = await self._store.events.find(asked, audience, exclude, max(CANDIDATES, limit))
        ranked = rank(search, asked)
        if budget_tokens is None:
            hits, omitted = ranked[:limit], 0
        else:
            hits, omitted = within(ranked, limit, budget_tokens)
        return Recalled(tuple(hits), no_record=is_no_record(search, asked), omitted=omitted)
