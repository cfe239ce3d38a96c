"""Looks at everything that is stored, range by range, on a connection of its own: nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import apsw

from memory_service.model import Check, Report
from memory_service.store.checks import QUESTIONS, Question
from memory_service.store.connection import open_for_reading, translated

EXAMPLES = 5
_ROWS = 5_000
"""So many rows are looked at in a step: some 10 to 50 ms."""

MEDIUM = "the_database_is_sound"
WORD_INDEXES = "the_word_indexes_are_sound"
_REFERENCES = "references_have_their_target"


@dataclass(slots=True)
class _Found:
    """What was found wanting until now, by check: how often, and the first examples."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def expect(self, check: str) -> None:
        self.counts.setdefault(check, 0)
        self.examples.setdefault(check, [])

    def add(self, check: str, example: object) -> None:
        self.counts[check] += 1
        if len(self.examples[check]) < EXAMPLES:
            self.examples[check].append(str(example))

    def report(self) -> Report:
        return Report(tuple(Check(name, count, tuple(self.examples[name])) for name, count in self.counts.items()))


async def verify(path: Path, progress: Callable[[int, int], None]) -> Report:
    """Ask all questions of :mod:`.checks`, and SQLite itself; see :meth:`memory_service.store.abc.Upkeep.verify`.

    A step is one statement and so sees one moment, whatever is written meanwhile. What cannot be read because it is
    damaged is part of the report.
    """
    found = _Found()
    async with _connection(path) as connection:
        steps = await asyncio.to_thread(lambda: list(_steps(connection, found)))
        for done, step in enumerate(steps):
            progress(done, len(steps))
            await asyncio.to_thread(step)
        progress(len(steps), len(steps))
    return found.report()


@asynccontextmanager
async def _connection(path: Path) -> AsyncIterator[apsw.Connection]:
    with translated(path):
        connection = await asyncio.to_thread(open_for_reading, path)
        try:
            yield connection
        finally:
            await asyncio.to_thread(connection.close)


def _steps(connection: apsw.Connection, found: _Found) -> Iterator[Callable[[], None]]:
    for check in (MEDIUM, WORD_INDEXES, _REFERENCES):
        found.expect(check)
    yield partial(_ask_sqlite, connection, found)
    yield partial(_ask_references, connection, found)
    for question in QUESTIONS:
        found.expect(question.check)
        try:
            parts = ranges(connection, question)
        except apsw.CorruptError as error:
            found.add(question.check, error)
            continue
        for low, high in parts:
            yield partial(_ask, connection, question, low, high, found)


def ranges(connection: apsw.Connection, question: Question) -> list[tuple[int, int]]:
    """Cut what a question goes through into ranges of its key, each from after the first number to the second."""
    least, most = connection.execute(question.span).get
    if least is None:
        return []
    return [(low, min(low + _ROWS, most)) for low in range(least - 1, most, _ROWS)]


def _ask(connection: apsw.Connection, question: Question, low: int, high: int, found: _Found) -> None:
    try:
        for (example,) in connection.execute(question.failing, (low, high)):
            found.add(question.check, example)
    except apsw.CorruptError as error:
        found.add(question.check, error)


def _ask_sqlite(connection: apsw.Connection, found: _Found) -> None:
    """Let SQLite check its pages, indexes and constraints, and FTS5 its word indexes: since 3.44 this is one question.

    So it needs no connection that may write. The write-ahead log only grows while it lasts.
    """
    try:
        for (line,) in connection.execute("PRAGMA integrity_check"):
            if line != "ok":
                found.add(WORD_INDEXES if "fts5" in line.lower() else MEDIUM, line)
    except apsw.CorruptError as error:
        found.add(MEDIUM, error)


def _ask_references(connection: apsw.Connection, found: _Found) -> None:
    try:
        for table, row, target, _ in connection.execute("PRAGMA foreign_key_check"):
            found.add(_REFERENCES, f"{table} {row} has no {target}")
    except apsw.CorruptError as error:
        found.add(_REFERENCES, error)
