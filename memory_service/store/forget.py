"""Forgetting on SQLite: rows go in small slices, then what the files still hold of them is written over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import apsw

from memory_service.model import Deleted, Selected, Selection
from memory_service.store import forget_rows, rows
from memory_service.store.database import Database

_SLICE = 32
"""So many events share a transaction: few enough that a live append hardly waits."""

_BATCH = 10_000
_MERGED_PAGES = 64
_WORD_INDEXES = ("event_words", "document_words", "relation_words")

Condition = tuple[str, list[object]]


class SqliteForgetting:
    """Implements :class:`memory_service.store.abc.Forgetting`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def select(self, selection: Selection, examples: int) -> Selected:
        """Count what a selection holds; see :class:`memory_service.store.abc.Forgetting`."""
        return await self._database.read(lambda connection: _select(connection, selection, examples))

    async def lanes(self, ids: Collection[str]) -> Mapping[str, tuple[str, str, str]]:
        """Return events by lane; see :class:`memory_service.store.abc.Forgetting`."""
        condition, values = _events(Selection(ids=tuple(ids)))
        question = f"SELECT e.id, e.channel, e.principal, e.conversation FROM event e WHERE {condition}"
        return await self._database.read(
            lambda connection: {id: (*lane,) for id, *lane in connection.execute(question, values)}
        )

    async def delete(self, selection: Selection) -> Deleted:
        """Delete; see :class:`memory_service.store.abc.Forgetting`."""
        deleted = Deleted()
        # What was submitted before this is committed when it returns, so that nothing slips in behind the question.
        await self._database.write(lambda connection: None)
        for condition, delete in _STEPS:
            while numbers := await self._database.read(partial(_numbers, condition=condition(selection))):
                for first in range(0, len(numbers), _SLICE):
                    part = numbers[first : first + _SLICE]
                    deleted.add(await self._database.write(partial(delete, numbers=part), bulk=True))
        return deleted

    async def forgotten(self, ids: Collection[str]) -> frozenset[str]:
        """Return what was forgotten; see :class:`memory_service.store.abc.Forgetting`."""
        question = (
            "SELECT j.value FROM json_each(?) j"
            " WHERE EXISTS (SELECT 1 FROM forgotten WHERE forgotten.id = digest_of(j.value))"
        )

        def read(connection: apsw.Connection) -> frozenset[str]:
            if connection.execute("SELECT 1 FROM forgotten LIMIT 1").get is None:
                return frozenset()
            return frozenset(id for (id,) in connection.execute(question, (json.dumps(list(ids)),)))

        return await self._database.read(read)

    async def is_settled(self) -> bool:
        """Say whether traces may be left; see :class:`memory_service.store.abc.Forgetting`."""
        question = (
            "SELECT EXISTS (SELECT 1 FROM forgotten WHERE is_settled = 0) OR EXISTS (SELECT 1 FROM media_to_delete)"
        )
        return not await self._database.read(lambda connection: connection.execute(question).get)

    async def media(self) -> tuple[str, ...]:
        """Return digests that nothing holds; see :class:`memory_service.store.abc.Forgetting`."""
        question = (
            "SELECT digest FROM media_to_delete WHERE digest NOT IN (SELECT digest FROM media_block) ORDER BY digest"
        )
        return await self._database.read(lambda connection: tuple(digest for (digest,) in connection.execute(question)))

    async def erase(self) -> bool:
        """Write over what the files hold; see :class:`memory_service.store.abc.Forgetting`."""
        for index in _WORD_INDEXES:
            pages = -_MERGED_PAGES
            while await self._database.write(partial(_merge, index=index, pages=pages), bulk=True):
                pages = _MERGED_PAGES
        return await self._database.empty_log()

    async def settle(self) -> None:
        """Record that nothing is left; see :class:`memory_service.store.abc.Forgetting`."""

        def settle(connection: apsw.Connection) -> None:
            connection.execute("UPDATE forgotten SET is_settled = 1 WHERE is_settled = 0")
            connection.execute("DELETE FROM media_to_delete")

        await self._database.write(settle, bulk=True)


def _select(connection: apsw.Connection, selection: Selection, examples: int) -> Selected:
    def count(table: str, condition: Condition) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {condition[0]}", condition[1]).get)

    holds, values = _events(selection)
    newest = connection.execute(
        f"SELECT {rows.COLUMNS} FROM event e WHERE {holds} ORDER BY e.time DESC, e.number DESC LIMIT ?",
        (*values, examples),
    )
    return Selected(
        events=count("event e", (holds, values)),
        notes=count("document d", _notes(selection)),
        relations=count("relation r", _relations(selection)),
        examples=tuple(map(rows.event_from, newest)),
    )


def _numbers(connection: apsw.Connection, condition: tuple[str, Condition]) -> Sequence[int]:
    table, (holds, values) = condition
    question = f"SELECT number FROM {table} WHERE {holds} ORDER BY number LIMIT {_BATCH}"
    return [number for (number,) in connection.execute(question, values)]


def _merge(connection: apsw.Connection, index: str, pages: int) -> bool:
    """Merge a part of a word index, which leaves deleted words out; True if there is more to do.

    :param pages: how many pages of it; negative to begin with all of the index
    """
    before = connection.total_changes()
    connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (pages,))
    # One change is the statement itself.
    return connection.total_changes() - before >= 2


def _events(selection: Selection) -> Condition:
    if selection.ids:
        ids = json.dumps(selection.ids)
        return (
            "(e.id IN (SELECT value FROM json_each(?)) OR e.document IN (SELECT number FROM document"
            " WHERE kind = 'archive' AND id IN (SELECT value FROM json_each(?))))",
            [ids, ids],
        )
    return _within(selection, "e.principal", "e.time")


def _notes(selection: Selection) -> Condition:
    """The notes that are selected themselves, and those written in a turn that is."""
    condition, values = _events(selection)
    written, of_events = f"d.source_event IN (SELECT e.id FROM event e WHERE {condition})", values
    if selection.ids:
        own, values = "d.id IN (SELECT value FROM json_each(?))", [json.dumps(selection.ids)]
    else:
        own, values = _within(selection, "d.principal", "d.first_time")
    return f"d.kind = 'note' AND ({own} OR {written})", [*values, *of_events]


def _relations(selection: Selection) -> Condition:
    """The relations that rest on an event that is selected or, without a source, on that person's word alone."""
    condition, values = _events(selection)
    supported, of_events = f"r.source_event IN (SELECT e.number FROM event e WHERE {condition})", values
    if selection.ids:
        own, values = "r.id IN (SELECT value FROM json_each(?))", [json.dumps(selection.ids)]
    else:
        own, values = _within(selection, "r.principal", "r.created")
        own = f"r.source_event IS NULL AND {own}"
    return f"({own} OR {supported})", [*values, *of_events]


def _within(selection: Selection, owner: str, moment: str) -> Condition:
    conditions: list[str] = []
    values: list[object] = []
    for condition, value in (
        (f"{owner} = ?", selection.principal),
        (f"{moment} >= ?", selection.after),
        (f"{moment} < ?", selection.before),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    # A selection of nothing must not turn into one of everything.
    return " AND ".join(conditions) or "FALSE", values


def _of(table: str, condition: Callable[[Selection], Condition]) -> Callable[[Selection], tuple[str, Condition]]:
    return lambda selection: (table, condition(selection))


_STEPS = (
    (_of("event e", _events), partial(forget_rows.events, now=time.time)),
    (_of("document d", _notes), forget_rows.documents),
    (_of("relation r", _relations), forget_rows.relations),
)
