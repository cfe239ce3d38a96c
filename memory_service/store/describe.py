"""Everything that is stored about one item, for the operator who asks after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import apsw

from memory_service.store import rows

_DOCUMENT = (
    "SELECT d.number, d.id, d.kind, d.tier, d.principal, d.audience, d.first_time, d.last_time, d.created, d.updated,"
    " d.reads, d.last_read, d.source_event, d.tags, d.summary, d.content FROM document d WHERE d.id = ?"
)
_RELATION = (
    "SELECT r.number, r.id, s.name AS subject, r.type, o.name AS object, r.status, r.audience, r.confidence,"
    " r.valid_from, r.valid_to, (SELECT n.id FROM relation n WHERE n.number = r.superseded_by) AS superseded_by,"
    " r.created, r.origin, r.session, (SELECT e.id FROM event e WHERE e.number = r.source_event) AS source_event,"
    " r.sentence FROM relation r JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object"
    " WHERE r.id = ?"
)
_WORDS = {"event": "event_words", "document": "document_words", "relation": "relation_words"}
_MOST_EVENTS = 1_000


def describe(connection: apsw.Connection, id: str) -> Mapping[str, Any] | None:
    """Return what there is under an id, with the places where it is found by; None if there is nothing.

    ``kind`` is event, document or relation; a note is a document. Of an archive at most 1,000 event ids are given.
    """
    return _event(connection, id) or _document(connection, id) or _relation(connection, id)


def _event(connection: apsw.Connection, id: str) -> Mapping[str, Any] | None:
    row = connection.execute(
        f"SELECT e.number, e.tokens, e.created, {rows.COLUMNS} FROM event e WHERE e.id = ?", (id,)
    ).fetchone()
    if row is None:
        return None
    number, tokens, created = row[:3]
    event = rows.event_from(row[3:])
    results = [{"name": each.name, "output": each.output, "no_memory": each.no_memory} for each in event.tool_results]
    return {
        "kind": "event",
        "id": event.id,
        "number": number,
        "tier": event.tier,
        "document": event.document,
        "channel": event.channel,
        "conversation": event.conversation,
        "principal": event.principal,
        "speaker": event.speaker,
        "visible_to": list(event.visible_to),
        "shared": event.shared,
        "time": event.time,
        "created": created,
        "origin": event.origin,
        "tokens": tokens,
        "text": event.input,
        "reply": event.response,
        "tools_used": list(event.tools_used),
        "tool_results": results,
        **_around(connection, "event", number),
        "relations": _ids(connection, "SELECT id FROM relation WHERE source_event = ? ORDER BY number", number),
        "notes": _ids(connection, "SELECT id FROM document WHERE source_event = ? ORDER BY number", id),
    }


def _document(connection: apsw.Connection, id: str) -> Mapping[str, Any] | None:
    found = _row(connection, _DOCUMENT, id)
    if found is None:
        return None
    number = found.pop("number")
    question = f"SELECT id FROM event WHERE document = ? ORDER BY time, number LIMIT {_MOST_EVENTS}"
    return {
        **found,
        "kind": "document",
        "is_note": found["kind"] == "note",
        "number": number,
        "tags": json.loads(found["tags"]),
        **_visibility(connection, found.pop("audience")),
        **_around(connection, "document", number),
        "events": _ids(connection, question, number),
    }


def _relation(connection: apsw.Connection, id: str) -> Mapping[str, Any] | None:
    found = _row(connection, _RELATION, id)
    if found is None:
        return None
    number = found.pop("number")
    audience = _visibility(connection, found.pop("audience"))
    return {"kind": "relation", "number": number, **found, **audience, **_around(connection, "relation", number)}


def _around(connection: apsw.Connection, kind: str, number: int) -> dict[str, Any]:
    """Say by what an item is found, and what belongs to it."""
    vectors = [
        {"encoder": encoder, "fingerprint": fingerprint, "part": part, "bytes": size}
        for encoder, fingerprint, part, size in connection.execute(
            "SELECT s.encoder, s.fingerprint, v.part, length(v.code) FROM vector v JOIN vector_space s"
            " ON s.number = v.space WHERE v.kind = ? AND v.item = ? ORDER BY s.number, v.part",
            (kind, number),
        )
    ]
    queued = connection.execute("SELECT 1 FROM embedding_queue WHERE kind = ? AND item = ?", (kind, number)).get
    words = connection.execute(f"SELECT 1 FROM {_WORDS[kind]} WHERE rowid = ?", (number,)).get
    scenes = "SELECT s.key FROM scene_member m JOIN scene s ON s.number = m.scene WHERE m.kind = ? AND m.item = ?"
    media = connection.execute(
        "SELECT id, digest, mime, bytes, caption FROM media_block WHERE holder_kind = ? AND holder = ?", (kind, number)
    )
    return {
        "indexes": {"words": words is not None, "vectors": vectors, "waits_for_vector": queued is not None},
        "scenes": _ids(connection, scenes, kind, number),
        "media": [dict(zip(("id", "digest", "mime", "bytes", "caption"), row, strict=True)) for row in media],
    }


def _visibility(connection: apsw.Connection, audience: int) -> dict[str, Any]:
    members = connection.execute("SELECT members FROM audience WHERE number = ?", (audience,)).get
    return {"visible_to": json.loads(members), "shared": audience == 0}


def _row(connection: apsw.Connection, question: str, id: str) -> dict[str, Any] | None:
    cursor = connection.execute(question, (id,))
    for row in cursor:
        return dict(zip((name for name, _ in cursor.get_description()), row, strict=True))
    return None


def _ids(connection: apsw.Connection, question: str, *values: object) -> list[str]:
    return [id for (id,) in connection.execute(question, values)]
