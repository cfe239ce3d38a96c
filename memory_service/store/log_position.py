"""How far the readable log of conversations has come, on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from memory_service.model import Event, LogPosition
from memory_service.store import rows
from memory_service.store.database import Database


class SqliteLogPosition:
    """Implements :class:`memory_service.store.abc.LogStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def position(self) -> LogPosition | None:
        """Return what was confirmed last; see :class:`memory_service.store.abc.LogStore`."""

        def read(connection: apsw.Connection) -> LogPosition | None:
            row = connection.execute("SELECT event, file, bytes, opened FROM conversation_log").fetchone()
            return LogPosition(*row) if row is not None else None

        return await self._database.read(read)

    async def confirm(self, position: LogPosition) -> None:
        """Record a position; see :class:`memory_service.store.abc.LogStore`."""
        values = (position.event, position.file, position.bytes, position.opened)
        statement = (
            "INSERT INTO conversation_log (only_one, event, file, bytes, opened) VALUES (1, ?, ?, ?, ?) ON CONFLICT"
            " DO UPDATE SET event = excluded.event, file = excluded.file, bytes = excluded.bytes,"
            " opened = excluded.opened"
        )
        await self._database.write(lambda connection: connection.execute(statement, values) and None, bulk=True)

    async def following(self, after: int, limit: int, characters: int) -> Sequence[tuple[int, Event]]:
        """Return the next events; see :class:`memory_service.store.abc.LogStore`."""
        question = f"SELECT e.number, {rows.COLUMNS} FROM event e WHERE e.number > ? ORDER BY e.number LIMIT ?"

        def read(connection: apsw.Connection) -> list[tuple[int, Event]]:
            found, left = [], characters
            for number, *row in connection.execute(question, (after, limit)):
                event = rows.event_from(tuple(row))
                found.append((number, event))
                left -= len(event.input) + len(event.response)
                if left <= 0:
                    break
            return found

        return await self._database.read(read)

    async def newest(self) -> int:
        """Return the number of the newest event; see :class:`memory_service.store.abc.LogStore`."""
        question = "SELECT coalesce(max(number), 0) FROM event"
        return await self._database.read(lambda connection: int(connection.execute(question).get))
