"""Looks at a memory's database with questions of its own, so that the store's own check is checked as well."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw

from memory_service.store.connection import open_for_writing
from memory_service.words.days import day_of
from memory_service.words.tokenizer import FTS5, written
from tests.chaos.memory.invented import code

Row = tuple[Any, ...]
_written = lru_cache(maxsize=16_384)(written)

_SPACE = "(SELECT number FROM vector_space ORDER BY opened DESC, number DESC LIMIT 1)"
_NOTHING_FOUND = {
    "an event stands twice": "SELECT id FROM event GROUP BY id HAVING count(*) > 1",
    "an event is in a document and in the context, or in neither": (
        "SELECT id FROM event WHERE (tier = 'context') <> (document IS NULL)"
    ),
    "an event points to no archive of its audience": (
        "SELECT e.id FROM event e LEFT JOIN document d ON d.number = e.document WHERE e.document IS NOT NULL"
        " AND (d.number IS NULL OR d.kind <> 'archive' OR d.audience <> e.audience)"
    ),
    "an archive has no events": (
        "SELECT id FROM document WHERE kind = 'archive' AND number NOT IN"
        " (SELECT document FROM event WHERE document IS NOT NULL)"
    ),
    "an archive has not the times of its events": (
        "SELECT d.id FROM document d JOIN event e ON e.document = d.number GROUP BY d.number"
        " HAVING d.first_time <> min(e.time) OR d.last_time <> max(e.time)"
    ),
    "an event has no words": "SELECT id FROM event WHERE number NOT IN (SELECT id FROM event_words_docsize)",
    "words have no event": "SELECT id FROM event_words_docsize WHERE id NOT IN (SELECT number FROM event)",
    "a note has no words": (
        "SELECT id FROM document WHERE kind = 'note' AND number NOT IN (SELECT id FROM document_words_docsize)"
    ),
    "words have no note": (
        "SELECT id FROM document_words_docsize WHERE id NOT IN (SELECT number FROM document WHERE kind = 'note')"
    ),
    "a relation has no words": (
        "SELECT id FROM relation WHERE status <> 'deleted' AND number NOT IN (SELECT id FROM relation_words_docsize)"
    ),
    "words have no relation": "SELECT id FROM relation_words_docsize WHERE id NOT IN (SELECT number FROM relation)",
    "an item has neither a vector nor a place in the queue": (
        "SELECT kind, number FROM (SELECT 'event' AS kind, number FROM event UNION ALL"
        " SELECT 'document', number FROM document WHERE kind = 'note' UNION ALL"
        " SELECT 'relation', number FROM relation WHERE status = 'active') i"
        " WHERE NOT EXISTS (SELECT 1 FROM embedding_queue q WHERE q.kind = i.kind AND q.item = i.number)"
        " AND NOT EXISTS (SELECT 1 FROM vector v WHERE v.kind = i.kind AND v.item = i.number"
        f" AND v.space = {_SPACE})"
    ),
    "an item waits for the vector that it has": (
        "SELECT q.kind, q.item FROM embedding_queue q JOIN vector v ON v.kind = q.kind AND v.item = q.item"
        f" WHERE v.space = {_SPACE}"
    ),
    "a vector or a place in the queue or a scene belongs to nothing": (
        "SELECT i.kind, i.item FROM (SELECT kind, item FROM embedding_queue UNION SELECT kind, item FROM vector UNION"
        " SELECT kind, item FROM scene_member) i WHERE i.kind <> 'media' AND NOT EXISTS (SELECT 1 FROM event e"
        " WHERE i.kind = 'event' AND e.number = i.item UNION ALL SELECT 1 FROM document d WHERE i.kind = 'document'"
        " AND d.number = i.item UNION ALL SELECT 1 FROM relation r WHERE i.kind = 'relation' AND r.number = i.item)"
    ),
    "an audience has not the members that it names": (
        "SELECT number FROM audience a WHERE members <> (SELECT json_group_array(principal ORDER BY principal)"
        " FROM audience_member m WHERE m.audience = a.number)"
    ),
    "a note's source is not there": (
        "SELECT id FROM document WHERE source_event IS NOT NULL AND source_event NOT IN (SELECT id FROM event)"
    ),
    "a relation does not point to the event that it was told in": (
        "SELECT r.id FROM relation r JOIN event e ON e.id = r.source WHERE r.source_event IS NOT e.number"
    ),
    "a relation stands twice": (
        "SELECT subject FROM relation WHERE status = 'active' GROUP BY subject, type, object HAVING count(*) > 1"
    ),
    "a relation has another audience than its ends": (
        "SELECT r.id FROM relation r JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object"
        " WHERE r.audience <> s.audience OR r.audience <> o.audience"
    ),
    "a document's tier is not that of its events": (
        "SELECT d.id FROM document d JOIN event e ON e.document = d.number WHERE d.tier <> e.tier"
    ),
    "an entity is in no relation": (
        "SELECT key FROM entity WHERE number NOT IN (SELECT subject FROM relation UNION SELECT object FROM relation)"
    ),
    "a superseded relation does not say by which": (
        "SELECT id FROM relation WHERE (status = 'superseded') <> (superseded_by IS NOT NULL)"
    ),
}
_INDEXES = ("event_words", "document_words", "relation_words")
_EVENTS = (
    "SELECT e.id, e.channel, e.conversation, e.principal, e.speaker, e.time, e.origin, a.members, e.audience = 0,"
    " e.tools_used, e.input, e.response, e.tool_results, e.tier, d.id, e.number FROM event e"
    " JOIN audience a ON a.number = e.audience LEFT JOIN document d ON d.number = e.document"
)
_NOTES = (
    "SELECT d.id, d.principal, a.members, d.audience = 0, d.first_time, d.content, d.summary, d.tags, d.source_event,"
    " d.number FROM document d JOIN audience a ON a.number = d.audience WHERE d.kind = 'note'"
)
_MEDIA = (
    "SELECT b.caption, b.digest, e.id FROM media_block b LEFT JOIN event e"
    " ON b.holder_kind = 'event' AND e.number = b.holder"
)
_RELATIONS = (
    "SELECT r.id, s.name, r.type, o.name, r.status, r.source, r.sentence, a.members, r.number FROM relation r"
    " JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object JOIN audience a"
    " ON a.number = r.audience"
)


@dataclass(slots=True)
class Found:
    """What is in a database.

    :ivar problems: what contradicts itself, in words
    :ivar events: rows by id: all that an event is, its tier, its document and its number last
    :ivar media: caption, digest and event of each media block
    :ivar files: digests of the media files that are there
    :ivar forgotten: digests of the ids of forgotten events
    """

    problems: list[str] = field(default_factory=list)
    events: dict[str, Row] = field(default_factory=dict)
    notes: dict[str, Row] = field(default_factory=dict)
    relations: dict[str, Row] = field(default_factory=dict)
    media: list[Row] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    forgotten: set[bytes] = field(default_factory=set)
    queued: set[tuple[str, int]] = field(default_factory=set)


def inspect(path: Path, media: Path) -> Found:
    """Read everything in a database, which nobody else uses, and check it against itself.

    :param media: the folder with the bytes of media
    """
    found = Found()
    connection = open_for_writing(path)
    try:
        found.problems += _broken(connection)
        if not found.problems:
            _read(connection, found)
            found.problems += _contradictions(connection)
            found.problems += _wrong_words(connection, found)
            found.problems += _wrong_vectors(connection)
            found.problems += _wrong_files(found, media)
    except apsw.Error as error:
        found.problems.append(f"the database cannot be read: {error!r}")
    finally:
        connection.close()
    return found


def _wrong_files(found: Found, media: Path) -> Iterator[str]:
    """Check the bytes of media; a file that belongs to nothing may be left over from a crash."""
    whole = {file.name for file in media.glob("*/*") if hashlib.sha256(file.read_bytes()).hexdigest() == file.name}
    found.files = {file.name for file in media.glob("*/*")}
    for caption, digest, _ in found.media:
        if digest not in whole:
            yield f"the bytes of {caption} are {'damaged' if digest in found.files else 'lost'}"


def wrong_backup(path: Path, events: int) -> Iterator[str]:
    """Check the copy that was made before the schema changed.

    :param events: how many there were
    """
    connection = apsw.Connection(str(path))
    try:
        found = (connection.execute("PRAGMA quick_check").get, connection.execute("SELECT count(*) FROM event").get)
        if found != ("ok", events):
            yield f"{path.name} is not a copy of {events} events: {found}"
    except apsw.Error as error:
        yield f"{path.name} cannot be read: {error!r}"
    finally:
        connection.close()


def digest(id: str) -> bytes:
    """Return under which digest a forgotten event's id is kept."""
    return hashlib.sha256(id.encode()).digest()


def _broken(connection: apsw.Connection) -> Iterator[str]:
    for check in ("integrity_check", "foreign_key_check"):
        for row in connection.execute(f"PRAGMA {check}"):
            if row != ("ok",):
                yield f"{check}: {row}"
    for index in _INDEXES:
        try:
            connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 0)")
        except apsw.Error as error:
            yield f"{index} is damaged: {error!r}"


def _read(connection: apsw.Connection, found: Found) -> None:
    found.events = {row[0]: row for row in connection.execute(_EVENTS)}
    found.notes = {row[0]: row for row in connection.execute(_NOTES)}
    found.relations = {row[0]: row for row in connection.execute(_RELATIONS)}
    found.media = list(connection.execute(_MEDIA))
    found.forgotten = {row[0] for row in connection.execute("SELECT id FROM forgotten")}
    found.queued = set(connection.execute("SELECT kind, item FROM embedding_queue"))


def _contradictions(connection: apsw.Connection) -> Iterator[str]:
    for what, question in _NOTHING_FOUND.items():
        rows = list(connection.execute(question))
        if rows:
            yield f"{what}: {len(rows)}, such as {rows[:3]}"


def _wrong_words(connection: apsw.Connection, found: Found) -> Iterator[str]:
    """Make the indexes again, of what the rows say, and compare them word by word."""
    texts = {
        "event_words": (
            "said, reply, tools, about",
            [
                (row[15], *map(_written, (row[10], row[11], _tools(row[12]))), f"{_written(row[4])} {day_of(row[5])}")
                for row in found.events.values()
            ],
        ),
        "document_words": (
            "summary, content, tags",
            [(row[9], *map(_written, (row[6], row[5], " ".join(json.loads(row[7]))))) for row in found.notes.values()],
        ),
        "relation_words": (
            "subject, type, object, sentence",
            [
                (row[8], *map(_written, (row[1], row[2], row[3], row[6])))
                for row in found.relations.values()
                if row[4] != "deleted"
            ],
        ),
    }
    for index, (columns, rows) in texts.items():
        connection.execute(
            f'CREATE VIRTUAL TABLE temp.expected USING fts5 ({columns}, content = "", tokenize = "{FTS5}")'
        )
        marks = ", ".join("?" * (columns.count(",") + 2))
        connection.executemany(f"INSERT INTO temp.expected (rowid, {columns}) VALUES ({marks})", rows)
        connection.execute("CREATE VIRTUAL TABLE temp.expected_words USING fts5vocab (temp, expected, instance)")
        connection.execute(f"CREATE VIRTUAL TABLE temp.found_words USING fts5vocab (main, {index}, instance)")
        yield from _differences(connection, index)
        for table in ("expected_words", "found_words", "expected"):
            connection.execute(f"DROP TABLE temp.{table}")


def _differences(connection: apsw.Connection, index: str) -> Iterator[str]:
    # Of a row that was deleted the vocabulary still names the words, until the index is merged.
    kept = f"SELECT term, doc, col, offset FROM temp.found_words WHERE doc IN (SELECT id FROM {index}_docsize)"
    expected = "SELECT term, doc, col, offset FROM temp.expected_words"
    for what, question in (("lacks", f"{expected} EXCEPT {kept}"), ("has in excess", f"{kept} EXCEPT {expected}")):
        rows = list(connection.execute(question))
        if rows:
            yield f"{index} {what} {len(rows)} words, such as {rows[:3]}"


def _tools(results: str) -> str:
    told = (f"{result['name']} {result['output']}" for result in json.loads(results) if not result["no_memory"])
    return "\n".join(told)[:8_000]


def _wrong_vectors(connection: apsw.Connection) -> Iterator[str]:
    parts: dict[tuple[int, str, int], set[str]] = {}
    for space, kind, item, part, stored in connection.execute("SELECT space, kind, item, part, code FROM vector"):
        parts.setdefault((space, kind, item), set()).add(part)
        if stored != code(space, kind, item, part):
            yield f"the vector of {kind} {item}, {part}, is not the one that was stored"
    whole = {"event": {"said", "reply"}, "document": {"text"}, "relation": {"fact"}}
    for (space, kind, item), found in parts.items():
        if found != whole[kind]:
            yield f"of the vectors of {kind} {item} in space {space} there is only {found}"
