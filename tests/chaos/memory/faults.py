"""Mistakes to plant in a store, so that it is seen whether the harness finds them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import apsw

from homeagent_sdk.migrations import Migration
from memory_service.model import Document, Event
from memory_service.store import connection as store_connection
from memory_service.store import database, events, rows, schema, writer
from memory_service.store.documents import SqliteDocuments
from memory_service.store.event_words import write_words
from memory_service.store.forget import SqliteForgetting

_NUMBER = "(SELECT number FROM event WHERE id = ?)"
_insert = rows.insert
_get_documents = SqliteDocuments.get
_bring_back = SqliteDocuments.bring_back
_delete = SqliteForgetting.delete
_commit = writer.Writer._commit


@contextmanager
def _instead(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _opened_with(setting: str) -> AbstractContextManager[None]:
    """The writing connection has one setting more."""
    original = store_connection._open

    def open_with(path: Any, *settings: str) -> apsw.Connection:
        return original(path, *settings, *([setting] if len(settings) > 1 else []))

    return _instead(store_connection, "_open", open_with)


def _commit_late(self: writer.Writer, group: list[Any]) -> None:
    """Whoever waits is told first, and then it is committed."""
    if not group or not group[0].is_transaction:
        return _commit(self, group)
    self._connection.execute("BEGIN IMMEDIATE")
    for job in group:
        job.done.set_result(job.work(self._connection))
    self._connection.execute("COMMIT")
    return None


async def _archive_in_two(self: SqliteDocuments, ids: Collection[str], principal: str) -> tuple[Document, ...]:
    """First the documents, then the events: in between the documents are empty."""
    moving = (
        "SELECT audience, min(time), max(time), json_group_array(number) FROM event WHERE tier = 'context'"
        " AND id IN (SELECT value FROM json_each(?)) GROUP BY audience"
    )
    made: list[tuple[str, str]] = []

    def make(connection: apsw.Connection) -> None:
        for audience, first, last, numbers in list(connection.execute(moving, (json.dumps(list(ids)),))):
            made.append((f"doc-{uuid.uuid4().hex}", numbers))
            connection.execute(
                "INSERT INTO document (id, kind, audience, principal, first_time, last_time, created, updated, summary,"
                " content) VALUES (?, 'archive', ?, ?, ?, ?, ?, ?, '', '')",
                (made[-1][0], audience, principal, first, last, time.time(), time.time()),
            )

    def move(connection: apsw.Connection) -> None:
        for id, numbers in made:
            connection.execute(
                "UPDATE event SET tier = 'document', document = (SELECT number FROM document WHERE id = ?)"
                " WHERE number IN (SELECT value FROM json_each(?))",
                (id, numbers),
            )

    await self._database.write(make)
    await self._database.write(move)
    return await _get_documents(self, [id for id, _ in made])


async def _return_in_parts(self: SqliteDocuments, ids: Collection[str]) -> tuple[str, ...]:
    """One event after another, each in a transaction of its own."""
    returned: tuple[str, ...] = ()
    for id in ids:
        returned += await _bring_back(self, [id])
    return returned


async def _append_without_words(self: events.SqliteEvents, event: Event) -> bool:
    """The words follow in a second transaction."""

    item = rows.prepared(event)

    def strip(connection: apsw.Connection) -> int:
        new = _insert(connection, [item])
        if new:
            connection.execute(f"DELETE FROM event_words WHERE rowid = {_NUMBER}", (event.id,))
        return new

    def add(connection: apsw.Connection) -> None:
        write_words(connection, connection.execute(f"SELECT {_NUMBER}", (event.id,)).get, item.words)

    new = await self._database.write(strip)
    if new:
        await self._database.write(add)
    return new == 1


def _without_words_of_some(connection: apsw.Connection, items: Iterable[rows.Prepared]) -> int:
    """Every seventh event's words are left out, by mistake."""
    new = _insert(connection, items)
    for item in items:
        if int(item.event.id.rpartition("-")[2]) % 7 == 0:
            connection.execute(f"DELETE FROM event_words WHERE rowid = {_NUMBER}", (item.event.id,))
    return new


def _without_queue(connection: apsw.Connection, items: Iterable[rows.Prepared]) -> int:
    """Events get no place in the queue for vectors."""
    new = _insert(connection, items)
    for item in items:
        connection.execute(f"DELETE FROM embedding_queue WHERE item = {_NUMBER}", (item.event.id,))
    return new


async def _import_answers_later(self: events.SqliteEvents, some: Sequence[Event]) -> int:
    """Of each event first what was said, then, in a second transaction, the answer."""

    def store(connection: apsw.Connection) -> int:
        stored = _insert(connection, map(rows.prepared, some))
        for event in some:
            connection.execute("UPDATE event SET response = '' WHERE id = ?", (event.id,))
        return stored

    def fill(connection: apsw.Connection) -> None:
        for event in some:
            connection.execute("UPDATE event SET response = ? WHERE id = ?", (event.response, event.id))

    stored = await self._database.write(store)
    await self._database.write(fill)
    return stored


async def _forget_the_digest_later(self: SqliteForgetting, selection: Any) -> Any:
    """What was forgotten is marked so in a second transaction."""
    deleted = await _delete(self, selection)
    await self._database.write(lambda connection: connection.execute("DELETE FROM forgotten"))
    return deleted


def _migration_in_two() -> AbstractContextManager[None]:
    """The second step commits when the old table is gone and the new one is empty."""
    first, second = schema.MIGRATIONS[:2]
    before, after = second.sql.split("INSERT INTO event SELECT", 1)
    broken = Migration(2, second.name, f"{before}COMMIT; BEGIN IMMEDIATE; INSERT INTO event SELECT{after}", second.then)
    return _instead(database, "MIGRATIONS", (first, broken, *schema.MIGRATIONS[2:]))


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "synchronous is NORMAL": lambda: _opened_with("synchronous = NORMAL"),
    "synchronous is OFF": lambda: _opened_with("synchronous = OFF"),
    "acknowledged before the commit": lambda: _instead(writer.Writer, "_commit", _commit_late),
    "archived in two transactions": lambda: _instead(SqliteDocuments, "archive", _archive_in_two),
    "returned one by one": lambda: _instead(SqliteDocuments, "bring_back", _return_in_parts),
    "words in a second transaction": lambda: _instead(events.SqliteEvents, "append", _append_without_words),
    "no words of some events": lambda: _instead(rows, "insert", _without_words_of_some),
    "no place in the queue": lambda: _instead(rows, "insert", _without_queue),
    "answers imported later": lambda: _instead(events.SqliteEvents, "append_many", _import_answers_later),
    "forgotten without a trace": lambda: _instead(SqliteForgetting, "delete", _forget_the_digest_later),
    "migrated in two transactions": _migration_in_two,
}
"""By name; each is planted for as long as its context is open."""
