"""Events on SQLite: appended once, moved by changing their tier, found by words."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import apsw

from memory_service.model import Candidate, Event, InContext, Search, Term
from memory_service.store import rows
from memory_service.store.audiences import seen_by
from memory_service.store.database import Database
from memory_service.store.frequencies import Frequencies, worth_asking
from memory_service.words.tokenizer import match_phrase

_WEIGHTS = "bm25(1.0, 0.7, 0.3, 1.0)"
"""What a word counts in what was said, in the reply, in tool output, and in the event's speaker and day."""

_MOST_WEIGHED = 3_000
"""Likewise where given events are weighed and not looked for: about 2 µs each."""

_INLINE_CHARACTERS = 2_000
"""The words of so short an event are cut at once, in less than a millisecond; those of longer ones in a thread."""

_SLICE_S = 0.0045
"""So long a slice of a bulk append is written, in seconds; with what is merged at its end and its commit it takes 7 ms.
The commit is left out of account: on a slow disk it takes as long for a small slice as for a large one."""

_WEIGHT_OF_ROW = 300
_FIRST_WEIGHT, _LEAST_WEIGHT, _MOST_WEIGHT = 8_000, 4_000, 60_000
"""What a slice may weigh: an event weighs as much as it has characters, and its row as much as 300."""

_AT_ONCE = 4
"""So many short events are made ready before others have their turn: half a millisecond."""


class SqliteEvents:
    """Implements :class:`memory_service.store.abc.EventStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._frequencies = Frequencies()
        self._slice_weight = _FIRST_WEIGHT

    async def append(self, event: Event) -> bool:
        """Store an event; see :class:`memory_service.store.abc.EventStore`."""
        item = await _prepared(event)
        return await self._database.write(lambda connection: rows.insert(connection, [item])) == 1

    async def append_many(self, events: Sequence[Event]) -> int:
        """Store many; see :class:`memory_service.store.abc.EventStore`."""
        stored = 0
        waiting = deque(events)
        while waiting:
            items, weight = await self._slice(waiting)
            new, taken_s = await self._database.write(partial(_insert_timed, items=items), bulk=True)
            stored += new
            self._slice_weight = _next_weight(self._slice_weight, weight, taken_s)
        return stored

    async def _slice(self, waiting: deque[Event]) -> tuple[list[rows.Prepared], int]:
        """Take as many events as are written within a few milliseconds, and make them ready; returns their weight."""
        items: list[rows.Prepared] = []
        weight = 0
        while waiting and (not items or weight + _weight(waiting[0]) <= self._slice_weight):
            weight += _weight(waiting[0])
            items.append(await _prepared(waiting.popleft()))
            if len(items) % _AT_ONCE == 0:
                await self._database.give_way()
        return items, weight

    async def get(self, ids: Collection[str]) -> tuple[Event, ...]:
        """Return events; see :class:`memory_service.store.abc.EventStore`."""
        question = (
            f"SELECT {rows.COLUMNS} FROM event e WHERE e.id IN (SELECT value FROM json_each(?))"
            " ORDER BY e.time, e.number"
        )
        return await self._database.read(
            lambda connection: tuple(map(rows.event_from, connection.execute(question, (json.dumps(list(ids)),))))
        )

    async def by_number(self, numbers: Collection[int], audience: Collection[str] | None) -> Mapping[int, Event]:
        """Return events; see :class:`memory_service.store.abc.EventStore`."""

        def read(connection: apsw.Connection) -> dict[int, Event]:
            condition, values = visible(connection, "e", audience)
            question = (
                f"SELECT e.number, {rows.COLUMNS} FROM event e"
                f" WHERE e.number IN (SELECT value FROM json_each(?)) {condition}"
            )
            found = connection.execute(question, (json.dumps(list(numbers)), *values))
            return {row[0]: rows.event_from(row[1:]) for row in found}

        return await self._database.read(read)

    async def missing(self, ids: Collection[str]) -> tuple[str, ...]:
        """Return what is not stored; see :class:`memory_service.store.abc.EventStore`."""
        question = "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM event)"
        return await self._database.read(
            lambda connection: tuple(id for (id,) in connection.execute(question, (json.dumps(list(ids)),)))
        )

    async def find(
        self, terms: Sequence[Term], audience: Collection[str] | None, exclude: Collection[str], limit: int
    ) -> Search:
        """Find events by words; see :class:`memory_service.store.abc.EventStore`."""
        return await self._database.read(
            lambda connection: _find(connection, self._frequencies, terms, audience, exclude, limit)
        )

    async def relevance(self, terms: Sequence[Term], numbers: Collection[int]) -> Mapping[int, float]:
        """Weigh events by words; see :class:`memory_service.store.abc.EventStore`."""
        return await self._database.read(
            lambda connection: _relevance(connection, self._frequencies, terms, frozenset(numbers))
        )

    async def audiences(self, asking: Collection[str]) -> tuple[int, ...]:
        """Return what may be seen; see :class:`memory_service.store.abc.EventStore`."""
        return await self._database.read(lambda connection: tuple(seen_by(connection, asking)))

    async def in_context(self, principal: str, audience: Collection[str], limit: int) -> tuple[InContext, ...]:
        """Return a person's context; see :class:`memory_service.store.abc.EventStore`."""

        def read(connection: apsw.Connection) -> tuple[InContext, ...]:
            condition, values = visible(connection, "e", audience)
            question = (
                "SELECT e.id, e.number, e.channel, e.conversation, e.time, e.tokens FROM event e"
                f" WHERE e.principal = ? AND e.tier = 'context' {condition} ORDER BY e.time DESC, e.number DESC LIMIT ?"
            )
            return tuple(InContext(*row) for row in connection.execute(question, (principal, *values, limit)))

        return await self._database.read(read)


async def _prepared(event: Event) -> rows.Prepared:
    if event.characters > _INLINE_CHARACTERS:
        return await asyncio.to_thread(rows.prepared, event)
    return rows.prepared(event)


def _insert_timed(connection: apsw.Connection, items: Sequence[rows.Prepared]) -> tuple[int, float]:
    started = time.perf_counter()
    return rows.insert(connection, items), time.perf_counter() - started


def _weight(event: Event) -> int:
    return event.characters + _WEIGHT_OF_ROW


def _next_weight(allowed: int, weight: int, taken_s: float) -> int:
    """Return how much the next slice may hold, so that it takes as long as it should: half way there at a time."""
    fitting = int(weight * _SLICE_S / max(taken_s, 1e-6))
    return min(max((allowed + fitting) // 2, _LEAST_WEIGHT), _MOST_WEIGHT)


def visible(connection: apsw.Connection, table: str, audience: Collection[str] | None) -> tuple[str, list[object]]:
    """Return the condition that keeps out what the audience may not see, and its values.

    :param audience: None for everything
    """
    if audience is None:
        return "", []
    seen = seen_by(connection, audience)
    return f"AND {table}.audience IN ({_marks(seen)})", list(seen)


def _find(
    connection: apsw.Connection,
    counted: Frequencies,
    terms: Sequence[Term],
    audience: Collection[str] | None,
    exclude: Collection[str],
    limit: int,
) -> Search:
    total = connection.execute("SELECT coalesce(max(number), 0) FROM event").get
    frequencies = counted.of(connection, terms, total)
    asked = worth_asking(frequencies)
    if not asked:
        return Search((), total, frequencies)
    condition, values = visible(connection, "e", audience)
    if exclude:
        condition += f" AND e.id NOT IN ({_marks(sorted(set(exclude)))})"
        values += sorted(set(exclude))
    found = connection.execute(
        f"SELECT rank, matched_terms(event_words), e.number, {rows.COLUMNS} FROM event_words"
        " JOIN event e ON e.number = event_words.rowid"
        f" WHERE event_words MATCH ? AND rank MATCH '{_WEIGHTS}' {condition} ORDER BY rank LIMIT ?",
        (" OR ".join(match_phrase(terms[index].tokens) for index in asked), *values, limit),
    )
    candidates = [
        Candidate(rows.event_from(row[3:]), -row[0], frozenset(asked[int(phrase)] for phrase in row[1].split()), row[2])
        for row in found
    ]
    return Search(tuple(candidates), total, frequencies)


def _relevance(
    connection: apsw.Connection, counted: Frequencies, terms: Sequence[Term], numbers: Collection[int]
) -> dict[int, float]:
    total = connection.execute("SELECT coalesce(max(number), 0) FROM event").get
    asked = worth_asking(counted.of(connection, terms, total), _MOST_WEIGHED)
    if not asked or not numbers:
        return {}
    ranked = connection.execute(
        f"SELECT rowid, rank FROM event_words WHERE event_words MATCH ? AND rank MATCH '{_WEIGHTS}'",
        (" OR ".join(match_phrase(terms[index].tokens) for index in asked),),
    )
    return {number: -rank for number, rank in ranked if number in numbers}


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def prepare(connection: apsw.Connection) -> None:
    """Make a reading connection able to say which terms of a question a row has."""
    connection.register_fts5_function("matched_terms", _matched_terms)


def _matched_terms(words: apsw.FTS5ExtensionApi, *_: object) -> str:
    """Say which phrases of the question this row has; run for the rows that are returned, not for all that match."""
    return " ".join(str(phrase) for phrase in range(words.phrase_count) if words.phrase_columns(phrase))
