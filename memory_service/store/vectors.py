"""Vectors on SQLite: int8 codes by space, and the queue of what has none yet."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import apsw

from memory_service.model import ToEmbed
from memory_service.store.database import Database

_AUDIENCE = (
    "CASE v.kind WHEN 'event' THEN (SELECT audience FROM event WHERE number = v.item)"
    " WHEN 'document' THEN (SELECT audience FROM document WHERE number = v.item)"
    " WHEN 'relation' THEN (SELECT audience FROM relation WHERE number = v.item) END"
)
_LACKING = tuple(
    f"INSERT OR IGNORE INTO embedding_queue SELECT '{kind}', t.number FROM {kind} t WHERE {condition} AND NOT EXISTS"
    f" (SELECT 1 FROM vector v WHERE v.kind = '{kind}' AND v.item = t.number AND v.space = ?)"
    for kind, condition in (
        ("event", "trim(t.input) || trim(t.response) <> ''"),
        ("document", "t.kind = 'note'"),
        ("relation", "t.status = 'active'"),
    )
)

_NOT_LACKING = (
    "DELETE FROM embedding_queue WHERE EXISTS (SELECT 1 FROM vector v WHERE v.kind = embedding_queue.kind"
    " AND v.item = embedding_queue.item AND v.space = ?)"
)
"""What waited for a vector of another space, and has one of this."""


class SqliteVectors:
    """Implements :class:`memory_service.store.abc.VectorStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open_space(self, fingerprint: str, encoder: str, dimensions: int) -> int:
        """Return a space; see :class:`memory_service.store.abc.VectorStore`."""

        def open_space(connection: apsw.Connection) -> int:
            number = connection.execute("SELECT number FROM vector_space WHERE fingerprint = ?", (fingerprint,)).get
            if number is None:
                connection.execute(
                    "INSERT INTO vector_space (fingerprint, encoder, dimensions, opened) VALUES (?, ?, ?, ?)",
                    (fingerprint, encoder, dimensions, time.time()),
                )
                number = connection.last_insert_rowid()
            else:
                connection.execute("UPDATE vector_space SET opened = ? WHERE number = ?", (time.time(), number))
            # What was stored while another space was in use, or is new to this one.
            for statement in _LACKING:
                connection.execute(statement, (number,))
            connection.execute(_NOT_LACKING, (number,))
            return int(number)

        return await self._database.write(open_space)

    async def last_space(self) -> tuple[str, str, int] | None:
        """Return the last space; see :class:`memory_service.store.abc.VectorStore`."""
        question = "SELECT encoder, fingerprint, dimensions FROM vector_space ORDER BY opened DESC, number DESC LIMIT 1"
        return await self._database.read(lambda connection: connection.execute(question).fetchone())

    async def queued(self, limit: int) -> tuple[ToEmbed, ...]:
        """Return what waits; see :class:`memory_service.store.abc.VectorStore`."""
        return await self._database.read(lambda connection: tuple(_queued(connection, limit)))

    async def put(self, space: int, items: Sequence[tuple[ToEmbed, Mapping[str, bytes]]]) -> tuple[ToEmbed, ...]:
        """Store codes; see :class:`memory_service.store.abc.VectorStore`."""

        def put(connection: apsw.Connection) -> tuple[ToEmbed, ...]:
            # A note that was rewritten while its old text was encoded stays in the queue for its new one.
            now = {(item.kind, item.number): item for item in _to_embed(connection, _by_kind([i for i, _ in items]))}
            stored = [(item, codes) for item, codes in items if now.get((item.kind, item.number)) == item]
            return tuple(item for item, codes in stored if _store(connection, space, item, codes))

        return await self._database.write(put, bulk=True)

    async def load(self, space: int, after: int, limit: int) -> Sequence[tuple[int, str, int, int, str, bytes]]:
        """Return stored vectors; see :class:`memory_service.store.abc.VectorStore`."""
        question = (
            f"SELECT v.rowid, v.kind, v.item, coalesce({_AUDIENCE}, -1), v.part, v.code FROM vector v"
            " WHERE v.rowid > ? AND v.space = ? ORDER BY v.rowid LIMIT ?"
        )
        return await self._database.read(lambda connection: list(connection.execute(question, (after, space, limit))))

    async def waiting(self) -> int:
        """Count what waits; see :class:`memory_service.store.abc.VectorStore`."""
        return await self._database.read(
            lambda connection: int(connection.execute("SELECT count(*) FROM embedding_queue").get)
        )


def _queued(connection: apsw.Connection, limit: int) -> list[ToEmbed]:
    by_kind: dict[str, list[int]] = {}
    for kind, number in connection.execute(
        "SELECT kind, item FROM embedding_queue ORDER BY item DESC LIMIT ?", (limit,)
    ):
        by_kind.setdefault(kind, []).append(number)
    return _to_embed(connection, by_kind)


def _to_embed(connection: apsw.Connection, by_kind: Mapping[str, Sequence[int]]) -> list[ToEmbed]:
    return [
        ToEmbed(kind, number, audience, {part: said for part, said in zip(_PARTS[kind], texts, strict=True) if said})
        for kind, numbers in by_kind.items()
        for number, audience, *texts in connection.execute(_TEXTS[kind], (json.dumps(numbers),))
    ]


def _by_kind(items: Sequence[ToEmbed]) -> dict[str, list[int]]:
    by_kind: dict[str, list[int]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item.number)
    return by_kind


def _store(connection: apsw.Connection, space: int, item: ToEmbed, codes: Mapping[str, bytes]) -> bool:
    key = (item.kind, item.number)
    connection.execute("DELETE FROM embedding_queue WHERE kind = ? AND item = ?", key)
    # Forgotten while it was being encoded: a vector would outlive it.
    if connection.changes() == 0:
        return False
    connection.executemany(
        "INSERT OR REPLACE INTO vector (space, kind, item, part, code) VALUES (?, ?, ?, ?, ?)",
        [(space, *key, part, code) for part, code in codes.items()],
    )
    return True


_PARTS = {"event": ("said", "reply"), "document": ("text",), "relation": ("fact",)}
_TEXTS = {
    "event": "SELECT number, audience, trim(input), trim(response) FROM event WHERE number IN"
    " (SELECT value FROM json_each(?))",
    "document": "SELECT number, audience, trim(summary || char(10) || content) FROM document WHERE number IN"
    " (SELECT value FROM json_each(?))",
    "relation": "SELECT r.number, r.audience, s.name || ' ' || r.type || ' ' || o.name || char(10) || r.sentence"
    " FROM relation r JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object"
    " WHERE r.number IN (SELECT value FROM json_each(?))",
}
"""What is encoded of an item, part by part. What was said and what was answered are two parts, so that a short
question is not drowned in a long answer."""
