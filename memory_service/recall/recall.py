"""Recall: question → words and meaning → candidates of both → order → verdict → budget."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from memory_service.model import Recalled
from memory_service.recall.budget import within
from memory_service.recall.candidates import (
    EVENT,
    FACT,
    NOTE,
    Found,
    by_words,
    event_found,
    fact_found,
    note_found,
)
from memory_service.recall.ranking import Question, is_no_record, rank
from memory_service.store.abc import Store
from memory_service.vectors.abc import QUESTION_PATIENCE_S, Meaning, Meanings
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter

CANDIDATES = 48
"""So many events at least are taken from each path: the best by words, and the nearest by meaning."""

_CANDIDATES_PER_HIT = 5
_MOST_CANDIDATES = 200
_NOTES = 8
_FACTS = 8
_KINDS = (EVENT, NOTE, FACT)
_LEAST_LENGTH = 7
"""A shorter question, such as a greeting, is near to every other greeting: words alone answer it."""


class Recall:
    """Answers questions out of a store.

    :param meanings: finds what means the same; None: words decide alone
    """

    def __init__(self, store: Store, segmenter: Segmenter, meanings: Meanings | None = None) -> None:
        self._store = store
        self._segmenter = segmenter
        self._meanings = meanings

    async def recall(
        self,
        query: str,
        audience: Collection[str] | None,
        *,
        exclude: Collection[str] = (),
        limit: int = 8,
        budget_tokens: int | None = None,
        patience_s: float = QUESTION_PATIENCE_S,
    ) -> Recalled:
        """Find the events, notes and facts that belong to a question.

        Hits are ranked even if there is no record, so that the caller can show near misses as what they are.

        :param audience: who will read the answer: only what all of them may see; None: everything
        :param exclude: ids not wanted, such as those already in the prompt
        :param budget_tokens: how much the hits may take together; None: no limit
        :param patience_s: how long to wait for the question's meaning, before words decide alone
        :raises Unavailable: the store cannot be read
        """
        count = min(max(CANDIDATES, _CANDIDATES_PER_HIT * limit), max(_MOST_CANDIDATES, limit))
        # Side by side: neither waits for the other, and an encoder takes as long as the whole search by words.
        (question, found), meaning = await asyncio.gather(
            self._by_words(query, audience, exclude, count), self._meaning_of(query, patience_s)
        )
        if meaning is not None:
            question = replace(question, enough_cosine=meaning.enough)
            found = await self._with_meaning(found, meaning, audience, exclude, count)
        elif not question.terms:
            return Recalled((), no_record=True)
        ranked = rank(question, found)
        if budget_tokens is None:
            hits, omitted = ranked[:limit], 0
        else:
            hits, omitted = within(ranked, limit, budget_tokens)
        return Recalled(tuple(hits), no_record=is_no_record(question, found), omitted=omitted)

    async def _meaning_of(self, query: str, patience_s: float) -> Meaning | None:
        if self._meanings is None or _length(query) < _LEAST_LENGTH:
            return None
        return await self._meanings.of(query, patience_s)

    async def _by_words(
        self, query: str, audience: Collection[str] | None, exclude: Collection[str], count: int
    ) -> tuple[Question, list[Found]]:
        asked = await asyncio.to_thread(terms, query, self._segmenter)
        if not asked:
            return Question((), (), 0), []
        events, notes, facts = await asyncio.gather(
            self._store.events.find(asked, audience, exclude, count),
            self._store.documents.find_notes(asked, audience, _NOTES),
            self._store.graph.find_facts(asked, audience, _FACTS),
        )
        found = by_words([*events.candidates, *notes.candidates, *facts])
        return Question(asked, events.frequencies, events.total), [f for f in found if f.hit.id not in exclude]

    async def _with_meaning(
        self,
        found: list[Found],
        meaning: Meaning,
        audience: Collection[str] | None,
        exclude: Collection[str],
        count: int,
    ) -> list[Found]:
        """Say of everything found by words how near its meaning is, and add what only its meaning finds."""
        seen = None if audience is None else await self._store.events.audiences(audience)
        known = {kind: [each.number for each in found if each.hit.kind == kind] for kind in _KINDS}
        nearest, cosines = await asyncio.gather(
            meaning.nearest(seen, {EVENT: count, NOTE: _NOTES, FACT: _FACTS}), meaning.cosines(known)
        )
        measured = [each.near(cosines[each.hit.kind].get(each.number)) for each in found]
        more = {kind: {n: c for n, c in near.items() if n not in cosines[kind]} for kind, near in nearest.items()}
        added = await self._by_number(more, audience)
        return [*measured, *(each for each in added if each.hit.id not in exclude)]

    async def _by_number(
        self, wanted: Mapping[str, Mapping[int, float]], audience: Collection[str] | None
    ) -> list[Found]:
        """Read what was found by its meaning; what the audience may not see, or is gone, is left out."""
        found: list[Found] = []
        if events := wanted[EVENT]:
            read = await self._store.events.by_number(events, audience)
            found += [event_found(event, number).near(events[number]) for number, event in read.items()]
        if notes := wanted[NOTE]:
            kept = await self._store.documents.notes_by_number(notes, audience)
            found += [note_found(note, number).near(notes[number]) for number, note in kept.items()]
        if facts := wanted[FACT]:
            held = await self._store.graph.facts_by_number(facts, audience)
            found += [fact_found(fact, number).near(facts[number]) for number, fact in held.items()]
        return found


def _length(query: str) -> int:
    """Return how long a question is, in letters; a character of Chinese counts as three."""
    return sum(3 if character >= "\u2e80" else 1 for character in query if character.isalnum())
