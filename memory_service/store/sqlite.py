"""The store on one SQLite database: a writing thread with group commit, reading threads beside it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Self

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Unavailable
from homeagent_sdk.migrations import migrate, online_backup
from memory_service.model import Candidate, Event, Search, Stats, Term
from memory_service.store import rows
from memory_service.store.connection import open_for_writing, translated
from memory_service.store.frequencies import Frequencies
from memory_service.store.reader import Readers
from memory_service.store.schema import MIGRATIONS
from memory_service.store.writer import Writer
from memory_service.words.tokenizer import match_phrase

_WEIGHTS = "bm25(1.0, 0.7, 0.3, 1.0)"
"""What a word counts in what was said, in the reply, in tool output, and in the event's speaker and day."""

_MAX_ASKED = 96
_MAX_ROWS = 1_500
"""So many events at most are ranked for a question, however large the memory: about 4 µs each."""


class SqliteStore:
    """Implements :class:`memory_service.store.abc.EventStore` in one file."""

    def __init__(self, path: Path, writer: Writer, lock: IO[bytes]) -> None:
        self._path = path
        self._writer = writer
        self._readers = Readers(path, _prepare)
        self._frequencies = Frequencies()
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database, making or upgrading it as needed; blocks, so call it before the event loop runs.

        Before an upgrade the database is copied to ``<name>.before-<version>.bak`` beside it.

        :raises Conflict: another memory service uses it, or it was made by a newer program
        :raises Unavailable: it cannot be opened, is not a database or is damaged; it is left as it was
        """
        lock = _lock(path.with_name(f"{path.name}.lock"))
        try:
            with translated(path):
                connection = open_for_writing(path)
                try:
                    backup = path.with_name(f"{path.name}.before-{len(MIGRATIONS)}.bak")
                    migrate(connection, MIGRATIONS, before=lambda: _back_up(connection, backup))
                    _touch_tables(connection)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.close()
            raise
        return cls(path, Writer(connection, path), lock)

    async def append(self, event: Event) -> bool:
        """Store an event; see :class:`memory_service.store.abc.EventStore`."""
        return bool(await asyncio.wrap_future(self._writer.submit(lambda connection: rows.insert(connection, event))))

    async def find(
        self, terms: Sequence[Term], audience: Collection[str] | None, exclude: Collection[str], limit: int
    ) -> Search:
        """Find events by words; see :class:`memory_service.store.abc.EventStore`."""
        return await self._readers.run(
            lambda connection: _find(connection, self._frequencies, terms, audience, exclude, limit)
        )

    async def stats(self) -> Stats:
        """Count; see :class:`memory_service.store.abc.EventStore`."""
        return await self._readers.run(self._count)

    def health(self) -> dict[str, object]:
        """Say how the store is; see :class:`memory_service.store.abc.EventStore`."""
        reason = self._writer.failure or self._readers.failure
        return {
            "state": "failed" if reason else "running",
            "reason": reason,
            "waiting": self._writer.waiting,
            "path": str(self._path),
        }

    async def close(self) -> None:
        """Finish and close; see :class:`memory_service.store.abc.EventStore`."""
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._writer.close)
        self._lock.close()

    def _count(self, connection: apsw.Connection) -> Stats:
        tiers = dict(connection.execute("SELECT tier, count(*) FROM event GROUP BY tier"))
        oldest, newest = connection.execute("SELECT min(time), max(time) FROM event").get
        files = (self._path, self._path.with_name(f"{self._path.name}-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return Stats(sum(tiers.values()), tiers, size, oldest, newest)


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
    asked = _worth_asking(frequencies)
    if not asked:
        return Search((), total, frequencies)
    condition, values = _visible(audience, exclude)
    found = connection.execute(
        f"SELECT rank, matched_terms(event_words), {rows.COLUMNS} FROM event_words"
        " JOIN event e ON e.number = event_words.rowid"
        f" WHERE event_words MATCH ? AND rank MATCH '{_WEIGHTS}' {condition} ORDER BY rank LIMIT ?",
        (" OR ".join(match_phrase(terms[index].tokens) for index in asked), *values, limit),
    )
    candidates = [
        Candidate(rows.event_from(row[2:]), -row[0], frozenset(asked[int(phrase)] for phrase in row[1].split()))
        for row in found
    ]
    return Search(tuple(candidates), total, frequencies)


def _visible(audience: Collection[str] | None, exclude: Collection[str]) -> tuple[str, list[object]]:
    """Return the condition that keeps out what the audience may not see, and its values."""
    condition, values = "", list[object]()
    if audience is not None:
        members = sorted(set(audience))
        condition = (
            "AND (e.shared OR (SELECT count(*) FROM event_visibility v WHERE v.event = e.number"
            f" AND v.principal IN ({_marks(members)})) = ?)"
        )
        values += [*members, len(members)]
    if exclude:
        left_out = sorted(set(exclude))
        condition += f" AND e.id NOT IN ({_marks(left_out)})"
        values += left_out
    return condition, values


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _worth_asking(frequencies: Sequence[int]) -> list[int]:
    """Return which terms to look up: the rarest first, as long as not too many events have them.

    The common ones say little and take most of the time; one is asked for if there is nothing rarer.
    """
    asked: list[int] = []
    rows = 0
    for index in sorted((i for i, frequency in enumerate(frequencies) if frequency), key=frequencies.__getitem__):
        rows += frequencies[index]
        if asked and (rows > _MAX_ROWS or len(asked) == _MAX_ASKED):
            break
        asked.append(index)
    return asked


def _prepare(connection: apsw.Connection) -> None:
    connection.register_fts5_function("matched_terms", _matched_terms)


def _matched_terms(words: apsw.FTS5ExtensionApi, *_: object) -> str:
    """Say which phrases of the question this row has; run for the rows that are returned, not for all that match."""
    return " ".join(str(phrase) for phrase in range(words.phrase_count) if words.phrase_columns(phrase))


def _touch_tables(connection: apsw.Connection) -> None:
    """Read the beginning of every table, so that a file damaged there is refused at start, not at the first turn."""
    for question in (
        "SELECT * FROM event ORDER BY number DESC LIMIT 1",
        "SELECT * FROM event_visibility LIMIT 1",
        "SELECT * FROM event_vocabulary LIMIT 1",
    ):
        list(connection.execute(question))


def _back_up(connection: apsw.Connection, target: Path) -> None:
    online_backup(connection, target)


def _lock(path: Path) -> IO[bytes]:
    """Take the lock that says which process owns the database; it is released when the process ends, however."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
    except OSError as error:
        raise Unavailable(
            text("memory.cannot_open", path=path, error=error.strerror), hint=text("memory.permission_hint")
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise Conflict(text("memory.in_use", path=path.parent), hint=text("memory.in_use_hint")) from error
    return file
