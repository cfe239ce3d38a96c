"""Deletes rows with all that hangs on them, inside the caller's transaction; each returns what it deleted, by store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import apsw

from memory_service.model import Deleted
from memory_service.store.documents import summary_of
from memory_service.store.graph_rows import take_back_sentences, without_successor

_IN = "IN (SELECT value FROM json_each(?))"


def events(connection: apsw.Connection, numbers: Sequence[int], now: Callable[[], float]) -> Deleted:
    """Delete events, the notes written in them, the relations that rest on them, documents that become empty."""
    deleted, chosen = Deleted(numbers={"event": list(numbers)}), json.dumps(numbers)
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
    deleted.add(documents(connection, notes))
    deleted.add(relations(connection, supported))
    _delete_belongings(connection, deleted, "event", chosen)
    _delete(connection, deleted, "words", f"DELETE FROM event_words WHERE rowid {_IN}", chosen)
    _delete(connection, deleted, "events", f"DELETE FROM event WHERE number {_IN}", chosen)
    deleted.add(documents(connection, _shrink(connection, archives)))
    return deleted


def documents(connection: apsw.Connection, numbers: Sequence[int]) -> Deleted:
    """Delete notes, and archives that have no events any more."""
    deleted = Deleted()
    if not numbers:
        return deleted
    deleted.numbers["document"], chosen = list(numbers), json.dumps(numbers)
    of_notes = (
        "SELECT number FROM relation WHERE source_event IS NULL"
        f" AND source IN (SELECT id FROM document WHERE number {_IN})"
    )
    deleted.add(relations(connection, _column(connection, of_notes, chosen)))
    _delete_belongings(connection, deleted, "document", chosen)
    connection.execute(f"DELETE FROM document_words WHERE rowid {_IN}", (chosen,))
    _delete(connection, deleted, "notes", f"DELETE FROM document WHERE kind = 'note' AND number {_IN}", chosen)
    _delete(connection, deleted, "documents", f"DELETE FROM document WHERE number {_IN}", chosen)
    return deleted


def relations(connection: apsw.Connection, numbers: Sequence[int]) -> Deleted:
    """Delete relations, and entities that nothing speaks of any more; what they had superseded holds again."""
    deleted = Deleted()
    if not numbers:
        return deleted
    deleted.numbers["relation"], chosen = list(numbers), json.dumps(numbers)
    entities = _column(
        connection,
        f"SELECT subject FROM relation WHERE number {_IN} UNION SELECT object FROM relation WHERE number {_IN}",
        chosen,
        chosen,
    )
    take_back_sentences(connection, numbers)
    holding_again = json.dumps(without_successor(connection, numbers))
    _delete_belongings(connection, deleted, "relation", chosen)
    connection.execute(f"DELETE FROM relation_words WHERE rowid {_IN}", (chosen,))
    _delete(connection, deleted, "relations", f"DELETE FROM relation WHERE number {_IN}", chosen)
    connection.execute(
        f"UPDATE relation SET status = 'active', valid_to = NULL, superseded_by = NULL WHERE number {_IN}",
        (holding_again,),
    )
    connection.execute(
        "INSERT OR IGNORE INTO embedding_queue SELECT 'relation', value FROM json_each(?)", (holding_again,)
    )
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


def media_of_entities(connection: apsw.Connection, numbers: Sequence[int]) -> Deleted:
    """Delete the media that belong to entities; their bytes follow once nothing holds them."""
    deleted = Deleted()
    _delete_belongings(connection, deleted, "entity", json.dumps(numbers))
    return deleted


def _delete_belongings(connection: apsw.Connection, deleted: Deleted, kind: str, chosen: str) -> None:
    """Delete vectors, places in the queue and in scenes, and media of items."""
    _delete(connection, deleted, "vectors", f"DELETE FROM vector WHERE kind = ? AND item {_IN}", kind, chosen)
    _delete(connection, deleted, "queued", f"DELETE FROM embedding_queue WHERE kind = ? AND item {_IN}", kind, chosen)
    _leave_scenes(connection, deleted, kind, chosen)
    held = _column(connection, f"SELECT number FROM media_block WHERE holder_kind = ? AND holder {_IN}", kind, chosen)
    if held:
        blocks = json.dumps(held)
        _delete_belongings(connection, deleted, "media", blocks)
        connection.execute(
            f"INSERT OR IGNORE INTO media_to_delete SELECT digest FROM media_block WHERE number {_IN}", (blocks,)
        )
        _delete(connection, deleted, "media", f"DELETE FROM media_block WHERE number {_IN}", blocks)


def _leave_scenes(connection: apsw.Connection, deleted: Deleted, kind: str, chosen: str) -> None:
    """Take items out of scenes; a scene that emerged from them alone goes too, with the words of its features."""
    scenes = _column(connection, f"SELECT DISTINCT scene FROM scene_member WHERE kind = ? AND item {_IN}", kind, chosen)
    if scenes:
        statement = f"DELETE FROM scene_member WHERE kind = ? AND item {_IN}"
        _delete(connection, deleted, "scene_members", statement, kind, chosen)
        connection.execute(
            f"DELETE FROM scene WHERE origin = 'emergent' AND number {_IN}"
            " AND NOT EXISTS (SELECT 1 FROM scene_member WHERE scene = scene.number)",
            (json.dumps(scenes),),
        )


def _shrink(connection: apsw.Connection, archives: Sequence[int]) -> list[int]:
    """Tell archives what they are now; returns those that have become empty."""
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
    return [number for number in archives if number not in left]


def _delete(connection: apsw.Connection, deleted: Deleted, name: str, statement: str, *values: object) -> None:
    connection.execute(statement, values)
    deleted.counts[name] += connection.changes()


def _column(connection: apsw.Connection, question: str, *values: object) -> list[int]:
    return [number for (number,) in connection.execute(question, values)]
