"""Makes anew what is only derived from what is stored: words, places in the queue; deletes what hangs on nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import apsw

from memory_service.store import documents, event_words, graph_rows
from memory_service.store.checks import QUESTIONS, Question
from memory_service.store.database import Database
from memory_service.store.verify import WORD_INDEXES, ranges, verify

_SLICE = 32
_WRITE_WORDS: Mapping[str, Callable[[apsw.Connection, Sequence[int]], None]] = {
    "event": event_words.write_words_anew,
    "document": documents.write_words_anew,
    "relation": graph_rows.index,
}
_ORPHANS = ("vectors_have_their_item", "waiting_have_their_item", "scene_members_have_their_item")

Cure = Callable[[apsw.Connection, Sequence[int]], None]


async def repair(database: Database) -> Mapping[str, int]:
    """Cure what can be cured without guessing; see :meth:`memory_service.store.abc.Upkeep.repair`.

    It is bulk work in slices, so live appends hardly wait. A word index that is not sound is emptied and written anew;
    until that is done, questions find less.
    """
    report = await verify(database.path, lambda done, of: None)
    failing = {check.name for check in report.checks if not check.ok}
    done: dict[str, int] = {}
    if WORD_INDEXES in failing:
        for kind in _WRITE_WORDS:
            await database.write(partial(_empty, index=f"{kind}_words"), bulk=True)
        done[WORD_INDEXES] = len(_WRITE_WORDS)
        failing.add("everything_has_its_words")
    for question in QUESTIONS:
        cure = _cure(question) if question.check in failing else None
        if cure is not None and (cured := await _apply(database, question, cure)):
            done[question.check] = done.get(question.check, 0) + cured
    return done


async def _apply(database: Database, question: Question, cure: Cure) -> int:
    """Cure all rows that a question finds; what changed since it was asked is not harmed by a cure."""
    asked = (
        f"SELECT {question.key} FROM {question.table} WHERE {question.key} > ? AND {question.key} <= ?"
        f" AND ({question.fails})"
    )
    cured = 0
    for part in await database.read(partial(ranges, question=question)):
        keys = await database.read(partial(_keys, asked=asked, part=part))
        for first in range(0, len(keys), _SLICE):
            await database.write(_on(cure, keys[first : first + _SLICE]), bulk=True)
        cured += len(keys)
    return cured


def _keys(connection: apsw.Connection, asked: str, part: tuple[int, int]) -> list[int]:
    return [key for (key,) in connection.execute(asked, part)]


def _on(cure: Cure, keys: Sequence[int]) -> Callable[[apsw.Connection], None]:
    return lambda connection: cure(connection, keys)


def _cure(question: Question) -> Cure | None:
    kind = question.table.split()[0].removesuffix("_words_docsize")
    if question.check == "everything_has_its_words":
        return _WRITE_WORDS[kind]
    if question.check == "words_have_their_item":
        return partial(_delete_words, kind)
    if question.check == "everything_has_its_vector_or_waits":
        return partial(_queue, kind)
    return partial(_delete, question) if question.check in _ORPHANS else None


def _empty(connection: apsw.Connection, index: str) -> None:
    connection.execute(f"INSERT INTO {index} ({index}) VALUES ('delete-all')")


def _delete_words(kind: str, connection: apsw.Connection, numbers: Sequence[int]) -> None:
    # Numbers are never used again: what had no item keeps having none.
    connection.executemany(f"DELETE FROM {kind}_words WHERE rowid = ?", [(number,) for number in numbers])


def _queue(kind: str, connection: apsw.Connection, numbers: Sequence[int]) -> None:
    connection.execute(
        f"INSERT OR IGNORE INTO embedding_queue SELECT '{kind}', number FROM {kind}"
        " WHERE number IN (SELECT value FROM json_each(?))",
        (json.dumps(list(numbers)),),
    )


def _delete(question: Question, connection: apsw.Connection, keys: Sequence[int]) -> None:
    table = question.table.replace(" ", " AS ")
    connection.execute(
        f"DELETE FROM {table} WHERE {question.key} IN (SELECT value FROM json_each(?)) AND ({question.fails})",
        (json.dumps(list(keys)),),
    )
