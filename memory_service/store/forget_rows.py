"""Deletes rows with all that hangs on them, inside the caller's transaction; each returns what it deleted, by store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

import apsw

from memory_service.store.documents import summary_of

_IN = "IN (SELECT value FROM json_each(?))"


def events(connection: apsw.Connection, numbers: Sequence[int], now: Callable[[], float]) -> Counter[str]:
    """Delete events, the notes written in them, the relations that rest on them, documents that become empty."""
    chosen = json.dumps(numbers)
    connection.execute(
        f"INSERT OR IGNORE INTO forgotten (id, time) SELECT digest_of(id), ? FROM event WHERE number {_IN}",
        (now(), chosen),
    )
    notes = _column(
        connection,
        f"SELECT number FROM document WHERE source_event IN (SELECT id FROM event WHERE number {_IN})",
        chosen,
    )
    archives = _column(
        connection, f"SELECT DISTINCT document FROM event WHERE document IS NOT NULL AND number {_IN}", chosen
    )
    supported = _column(connection, f"SELECT number FROM relation WHERE source_event {_IN}", chosen)
    deleted = documents(connection, notes) + relations(connection, supported)
    deleted += _belongings(connection, "event", chosen)
    _delete(connection, deleted, "words", f"DELETE FROM event_words WHERE rowid {_IN}", chosen)
    _delete(connection, deleted, "events", f"DELETE FROM event WHERE number {_IN}", chosen)
    return deleted + _shrink(connection, archives)


def documents(connection: apsw.Connection, numbers: Sequence[int]) -> Counter[str]:
    """Delete notes, and archives that have no events any more."""
    deleted: Counter[str] = Counter()
    if numbers:
        chosen = json.dumps(numbers)
        deleted += _belongings(connection, "document", chosen)
        connection.execute(f"DELETE FROM document_words WHERE rowid {_IN}", (chosen,))
        _delete(connection, deleted, "notes", f"DELETE FROM document WHERE kind = 'note' AND number {_IN}", chosen)
        _delete(connection, deleted, "documents", f"DELETE FROM document WHERE number {_IN}", chosen)
    return deleted


def relations(connection: apsw.Connection, numbers: Sequence[int]) -> Counter[str]:
    """Delete relations, and entities that nothing speaks of any more; what they had superseded holds again."""
    deleted: Counter[str] = Counter()
    if not numbers:
        return deleted
    chosen = json.dumps(numbers)
    entities = _column(
        connection,
        f"SELECT subject FROM relation WHERE number {_IN} UNION SELECT object FROM relation WHERE number {_IN}",
        chosen,
        chosen,
    )
    connection.execute(
        "UPDATE relation SET status = 'active', valid_to = NULL, superseded_by = NULL"
        f" WHERE status = 'superseded' AND superseded_by {_IN}",
        (chosen,),
    )
    deleted += _belongings(connection, "relation", chosen)
    connection.execute(f"DELETE FROM relation_words WHERE rowid {_IN}", (chosen,))
    _delete(connection, deleted, "relations", f"DELETE FROM relation WHERE number {_IN}", chosen)
    _delete(
        connection,
        deleted,
        "entities",
        f"DELETE FROM entity WHERE number {_IN}"
        " AND NOT EXISTS (SELECT 1 FROM relation WHERE subject = entity.number)"
        " AND NOT EXISTS (SELECT 1 FROM relation WHERE object = entity.number)"
        " AND NOT EXISTS (SELECT 1 FROM media_block WHERE holder_kind = 'entity' AND holder = entity.number)",
        json.dumps(entities),
    )
    return deleted


def _belongings(connection: apsw.Connection, kind: str, chosen: str) -> Counter[str]:
    """Delete vectors, places in the queue and in scenes, and media of items."""
    deleted: Counter[str] = Counter()
    for name, statement in (
        ("vectors", f"DELETE FROM vector WHERE kind = ? AND item {_IN}"),
        ("queued", f"DELETE FROM embedding_queue WHERE kind = ? AND item {_IN}"),
    ):
        _delete(connection, deleted, name, statement, kind, chosen)
    deleted += _leave_scenes(connection, kind, chosen)
    held = _column(connection, f"SELECT number FROM media_block WHERE holder_kind = ? AND holder {_IN}", kind, chosen)
    if held:
        deleted += _belongings(connection, "media", json.dumps(held))
        blocks = f"FROM media_block WHERE number {_IN}"
        connection.execute(f"INSERT OR IGNORE INTO media_to_delete SELECT digest {blocks}", (json.dumps(held),))
        _delete(connection, deleted, "media", f"DELETE {blocks}", json.dumps(held))
    return deleted


def _leave_scenes(connection: apsw.Connection, kind: str, chosen: str) -> Counter[str]:
    """Take items out of scenes; a scene that emerged from them alone goes too, with the words of its features."""
    deleted: Counter[str] = Counter()
    scenes = _column(connection, f"SELECT DISTINCT scene FROM scene_member WHERE kind = ? AND item {_IN}", kind, chosen)
    if scenes:
        statement = f"DELETE FROM scene_member WHERE kind = ? AND item {_IN}"
        _delete(connection, deleted, "scene_members", statement, kind, chosen)
        connection.execute(
            f"DELETE FROM scene WHERE origin = 'emergent' AND number {_IN}"
            " AND NOT EXISTS (SELECT 1 FROM scene_member WHERE scene = scene.number)",
            (json.dumps(scenes),),
        )
    return deleted


def _shrink(connection: apsw.Connection, archives: Sequence[int]) -> Counter[str]:
    """Delete archives that have become empty; tell the others what they are now."""
    left = {
        number: (first, last, count)
        for number, first, last, count in connection.execute(
            f"SELECT document, min(time), max(time), count(*) FROM event WHERE document {_IN} GROUP BY document",
            (json.dumps(archives),),
        )
    }
    for number, (first, last, count) in left.items():
        connection.execute(
            "UPDATE document SET first_time = ?, last_time = ?, summary = ? WHERE number = ?",
            (first, last, summary_of(first, last, count), number),
        )
    return documents(connection, [number for number in archives if number not in left])


def _delete(connection: apsw.Connection, deleted: Counter[str], name: str, statement: str, *values: object) -> None:
    connection.execute(statement, values)
    deleted[name] += connection.changes()


def _column(connection: apsw.Connection, question: str, *values: object) -> list[int]:
    return [number for (number,) in connection.execute(question, values)]
