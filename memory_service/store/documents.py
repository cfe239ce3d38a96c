"""Documents on SQLite: archives, which their events point to, and notes."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import apsw

from memory_service.model import Document, Note, NoteCandidate, NoteSearch, Term
from memory_service.store.audiences import HOUSEHOLD, intern
from memory_service.store.database import Database
from memory_service.store.events import visible
from memory_service.store.frequencies import frequencies_in
from memory_service.words.tokenizer import match_phrase, written

_COLUMNS = (
    "d.id, d.kind, d.tier, d.principal, d.audience, (SELECT a.members FROM audience a WHERE a.number = d.audience),"
    " d.first_time, d.last_time, d.summary, d.content, d.tags, d.reads, d.last_read,"
    " (SELECT json_group_array(e.id ORDER BY e.time, e.number) FROM event e WHERE e.document = d.number)"
)
_NOTE_COLUMNS = (
    "d.id, d.principal, d.audience, (SELECT a.members FROM audience a WHERE a.number = d.audience), d.first_time,"
    " d.content, d.summary, d.tags, d.source_event"
)
_WEIGHTS = "bm25(1.0, 1.0, 1.0)"
_INSERT_WORDS = "INSERT INTO document_words (rowid, summary, content, tags) VALUES (?, ?, ?, ?)"
_Words = tuple[str, str, str]
"""Of a note's summary, content and tags."""


class SqliteDocuments:
    """Implements :class:`memory_service.store.abc.DocumentStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def archive(self, events: Collection[str], principal: str) -> tuple[Document, ...]:
        """Move events out of the context; see :class:`memory_service.store.abc.DocumentStore`."""
        return await self._database.write(lambda connection: _archive(connection, events, principal), bulk=True)

    async def bring_back(self, events: Collection[str]) -> tuple[str, ...]:
        """Move events back; see :class:`memory_service.store.abc.DocumentStore`."""
        return await self._database.write(lambda connection: _bring_back(connection, events))

    async def write_note(self, note: Note) -> bool:
        """Store a note; see :class:`memory_service.store.abc.DocumentStore`."""
        words = await asyncio.to_thread(_words, note.summary, note.content, note.tags)
        return await self._database.write(lambda connection: _write_note(connection, note, words))

    async def get(self, ids: Collection[str]) -> tuple[Document, ...]:
        """Return documents; see :class:`memory_service.store.abc.DocumentStore`."""
        return await self._database.read(lambda connection: _documents(connection, ids))

    async def count_read(self, ids: Collection[str]) -> None:
        """Count a read; see :class:`memory_service.store.abc.DocumentStore`."""
        statement = "UPDATE document SET reads = reads + 1, last_read = ? WHERE id IN (SELECT value FROM json_each(?))"
        await self._database.write(
            lambda connection: connection.execute(statement, (time.time(), json.dumps(list(ids))))
        )

    async def find_notes(self, terms: Sequence[Term], audience: Collection[str] | None, limit: int) -> NoteSearch:
        """Find notes; see :class:`memory_service.store.abc.DocumentStore`."""
        return await self._database.read(lambda connection: _find_notes(connection, terms, audience, limit))

    async def notes_by_number(self, numbers: Collection[int], audience: Collection[str] | None) -> Mapping[int, Note]:
        """Return notes; see :class:`memory_service.store.abc.DocumentStore`."""

        def read(connection: apsw.Connection) -> dict[int, Note]:
            condition, values = visible(connection, "d", audience)
            question = (
                f"SELECT d.number, {_NOTE_COLUMNS} FROM document d"
                f" WHERE d.kind = 'note' AND d.number IN (SELECT value FROM json_each(?)) {condition}"
            )
            found = connection.execute(question, (json.dumps(list(numbers)), *values))
            return {row[0]: _note(row[1:]) for row in found}

        return await self._database.read(read)


def _archive(connection: apsw.Connection, events: Collection[str], principal: str) -> tuple[Document, ...]:
    moving = (
        "SELECT audience, min(time), max(time), count(*), json_group_array(number) FROM event"
        " WHERE tier = 'context' AND id IN (SELECT value FROM json_each(?)) GROUP BY audience"
    )
    made = []
    for audience, first, last, count, numbers in list(connection.execute(moving, (json.dumps(list(events)),))):
        id, now = f"doc-{uuid.uuid4().hex}", time.time()
        connection.execute(
            "INSERT INTO document (id, kind, audience, principal, first_time, last_time, created, updated, summary,"
            " content) VALUES (?, 'archive', ?, ?, ?, ?, ?, ?, ?, '')",
            (id, audience, principal, first, last, now, now, summary_of(first, last, count)),
        )
        connection.execute(
            "UPDATE event SET tier = 'document', document = ? WHERE number IN (SELECT value FROM json_each(?))",
            (connection.last_insert_rowid(), numbers),
        )
        made.append(id)
    return _documents(connection, made) if made else ()


def _bring_back(connection: apsw.Connection, events: Collection[str]) -> tuple[str, ...]:
    ids = json.dumps(list(events))
    moving = list(
        connection.execute(
            "SELECT number, id, document FROM event WHERE tier <> 'context'"
            " AND id IN (SELECT value FROM json_each(?)) ORDER BY time, number",
            (ids,),
        )
    )
    numbers = json.dumps([number for number, _, _ in moving])
    documents = json.dumps(sorted({document for _, _, document in moving}))
    connection.execute(
        "UPDATE event SET tier = 'context', document = NULL WHERE number IN (SELECT value FROM json_each(?))",
        (numbers,),
    )
    connection.execute(
        "DELETE FROM document WHERE number IN (SELECT value FROM json_each(?)) AND kind = 'archive'"
        " AND NOT EXISTS (SELECT 1 FROM event WHERE event.document = document.number)",
        (documents,),
    )
    connection.execute(
        "UPDATE document SET reads = reads + 1, last_read = ?1,"
        " first_time = (SELECT min(time) FROM event WHERE event.document = document.number),"
        " last_time = (SELECT max(time) FROM event WHERE event.document = document.number)"
        " WHERE number IN (SELECT value FROM json_each(?2)) AND kind = 'archive'",
        (time.time(), documents),
    )
    return tuple(id for _, id, _ in moving)


def _words(summary: str, content: str, tags: Sequence[str]) -> _Words:
    return written(summary), written(content), written(" ".join(tags))


def write_words_anew(connection: apsw.Connection, numbers: Sequence[int]) -> None:
    """Write the words of notes into the index as if for the first time."""
    notes = "SELECT number, summary, content, tags FROM document WHERE kind = 'note' AND number IN"
    for number, summary, content, tags in list(
        connection.execute(f"{notes} (SELECT value FROM json_each(?))", (json.dumps(list(numbers)),))
    ):
        connection.execute("DELETE FROM document_words WHERE rowid = ?", (number,))
        connection.execute(_INSERT_WORDS, (number, *_words(summary, content, json.loads(tags))))


def _write_note(connection: apsw.Connection, note: Note, words: _Words) -> bool:
    audience = intern(connection, note.visible_to, note.shared)
    tags = json.dumps(note.tags, ensure_ascii=False)
    old = connection.execute(
        "SELECT number, audience, content, summary, tags FROM document WHERE id = ?", (note.id,)
    ).fetchone()
    if old is not None and old[1:] == (audience, note.content, note.summary, tags):
        return False
    now, texts = time.time(), (note.source_event, tags, note.summary, note.content)
    if old is None:
        connection.execute(
            "INSERT INTO document (id, kind, audience, principal, first_time, last_time, created, updated,"
            " source_event, tags, summary, content) VALUES (?, 'note', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (note.id, audience, note.principal, note.time, note.time, now, now, *texts),
        )
        number = connection.last_insert_rowid()
    else:
        number = old[0]
        connection.execute(
            "UPDATE document SET audience = ?, updated = ?, tags = ?, summary = ?, content = ? WHERE number = ?",
            (audience, now, tags, note.summary, note.content, number),
        )
        connection.execute("DELETE FROM document_words WHERE rowid = ?", (number,))
        connection.execute("DELETE FROM vector WHERE kind = 'document' AND item = ?", (number,))
    connection.execute(_INSERT_WORDS, (number, *words))
    connection.execute("INSERT OR IGNORE INTO embedding_queue VALUES ('document', ?)", (number,))
    return True


def _documents(connection: apsw.Connection, ids: Collection[str]) -> tuple[Document, ...]:
    question = (
        f"SELECT {_COLUMNS} FROM document d WHERE d.id IN (SELECT value FROM json_each(?))"
        " ORDER BY d.first_time, d.number"
    )
    return tuple(map(_document, connection.execute(question, (json.dumps(list(ids)),))))


def _find_notes(
    connection: apsw.Connection, terms: Sequence[Term], audience: Collection[str] | None, limit: int
) -> NoteSearch:
    total = int(connection.execute("SELECT count(*) FROM document WHERE kind = 'note'").get)
    phrases = [match_phrase(term.tokens) for term in terms]
    count = "SELECT count(*) FROM document_words WHERE document_words MATCH ?"
    if not total:
        return NoteSearch((), total, (0,) * len(terms))
    # Most words of a question are in no note at all, which one look at the vocabulary tells.
    occur = frequencies_in(connection, "document_vocabulary", terms)
    frequencies = tuple(
        int(connection.execute(count, (phrase,)).get) if may_occur else 0
        for phrase, may_occur in zip(phrases, occur, strict=True)
    )
    if not any(frequencies):
        return NoteSearch((), total, frequencies)
    condition, values = visible(connection, "d", audience)
    found = connection.execute(
        f"SELECT rank, matched_terms(document_words), d.number, {_NOTE_COLUMNS} FROM document_words"
        " JOIN document d ON d.number = document_words.rowid"
        f" WHERE document_words MATCH ? AND rank MATCH '{_WEIGHTS}' {condition} ORDER BY rank LIMIT ?",
        (" OR ".join(phrases), *values, limit),
    )
    candidates = tuple(
        NoteCandidate(_note(row[3:]), -row[0], frozenset(int(phrase) for phrase in row[1].split()), row[2])
        for row in found
    )
    return NoteSearch(candidates, total, frequencies)


def _document(row: tuple[Any, ...]) -> Document:
    return Document(
        id=row[0],
        kind=row[1],
        tier=row[2],
        principal=row[3],
        visible_to=tuple(json.loads(row[5])),
        shared=row[4] == HOUSEHOLD,
        first_time=row[6],
        last_time=row[7],
        summary=row[8],
        content=row[9],
        tags=tuple(json.loads(row[10])),
        events=tuple(json.loads(row[13])),
        reads=row[11],
        last_read=row[12],
    )


def _note(row: tuple[Any, ...]) -> Note:
    return Note(
        id=row[0],
        principal=row[1],
        visible_to=tuple(json.loads(row[3])),
        shared=row[2] == HOUSEHOLD,
        time=row[4],
        content=row[5],
        summary=row[6],
        tags=tuple(json.loads(row[7])),
        source_event=row[8],
    )


def summary_of(first: float, last: float, count: int) -> str:
    """Say in one line what an archive is: how many events, and of which days."""
    days = [time.strftime("%Y-%m-%d", time.localtime(moment)) for moment in (first, last)]
    return f"{count} events of {days[0]}" if days[0] == days[1] else f"{count} events from {days[0]} to {days[1]}"
