"""Merging and checkpoints happen between pieces of work, and hold nobody up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path

import apsw
import pytest

from memory_service.store.connection import open_for_reading, open_for_writing
from memory_service.store.sqlite import SqliteStore
from memory_service.store.tidying import Tidying
from memory_service.store.writer import Writer
from tests.memory_service.samples import an_event

PAGE = 4_096


def segments(path: Path) -> int:
    connection = open_for_reading(path)
    count = int(connection.execute("SELECT count(DISTINCT segid) FROM event_words_idx").get)
    connection.close()
    return count


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what another thread does has no event to wait for
            await asyncio.sleep(0.01)


async def test_word_indexes_are_merged_when_nothing_is_to_be_done(store: SqliteStore, tmp_path: Path) -> None:
    for n in range(60):
        await store.events.append(an_event(f"e{n}", f"word{n} common"))
    await until(lambda: segments(tmp_path / "memory.db") < 8)


@pytest.fixture
async def small_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """A store that copies its log when that has 100 pages."""
    monkeypatch.setattr(Tidying.__init__, "__kwdefaults__", {"log_pages": 100})
    store = SqliteStore.open(tmp_path / "memory.db")
    yield store
    await store.close()


def log_size(folder: Path) -> int:
    return (folder / "memory.db-wal").stat().st_size


def generation(folder: Path) -> int:
    """How often the log began anew: in its header."""
    return int.from_bytes((folder / "memory.db-wal").read_bytes()[12:16], "big")


async def test_the_log_begins_anew_while_events_are_stored(small_log: SqliteStore, tmp_path: Path) -> None:
    several = [[an_event(f"e{m}-{n}", f"word{n} " * 50) for n in range(600)] for m in range(3)]
    await asyncio.gather(*(small_log.events.append_many(events) for events in several))
    assert generation(tmp_path) > 2
    assert log_size(tmp_path) < 1_500 * PAGE


async def test_a_question_that_runs_long_lets_it_grow_and_afterwards_it_begins_anew(
    small_log: SqliteStore, tmp_path: Path
) -> None:
    other = open_for_reading(tmp_path / "memory.db")
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM event").fetchall()
    await small_log.events.append_many([an_event(f"e{n}", f"word{n} " * 200) for n in range(300)])
    grown = log_size(tmp_path)
    assert grown > 200 * PAGE
    other.execute("COMMIT")
    other.close()

    before = generation(tmp_path)
    async with asyncio.timeout(20):
        for n in count():
            await small_log.events.append(an_event(f"more{n}", f"word{n} " * 200))
            if generation(tmp_path) != before:
                break


class Noted(Tidying):
    """Notes when it is called, and does nothing."""

    def __init__(self, steps: int = 1) -> None:
        self.done: list[str] = []
        self.steps = steps
        self.fails = False
        self.due = False

    @property
    def is_due(self) -> bool:
        return self.due

    def inside(self, connection: apsw.Connection) -> None:
        assert connection.in_transaction
        self.done.append("inside")

    def between(self, connection: apsw.Connection) -> bool:
        assert not connection.in_transaction
        self.due = False
        if self.fails:
            raise apsw.FullError("no room")
        self.done.append("between")
        return self.done.count("between") < self.steps


def written(writer: Writer, tidying: Noted, work: Sequence[tuple[str, bool]]) -> list[Future[None]]:
    """Submit work that notes its name, all of it while the writer is held up."""
    started, held = threading.Event(), threading.Event()

    def hold(_: apsw.Connection) -> None:
        started.set()
        held.wait(10)

    first = writer.submit(hold)
    started.wait(10)
    futures = [writer.submit(lambda _, name=name: tidying.done.append(name), bulk=bulk) for name, bulk in work]
    held.set()
    return [first, *futures]


async def test_bulk_work_is_tidied_from_inside_and_live_work_goes_first(tmp_path: Path) -> None:
    tidying = Noted(steps=3)
    writer = Writer(open_for_writing(tmp_path / "a.db"), tmp_path / "a.db", tidying=tidying)
    try:
        for future in written(writer, tidying, [("bulk1", True), ("bulk2", True), ("live", False)]):
            await asyncio.wrap_future(future)
        await until(lambda: tidying.done.count("between") >= 3)
    finally:
        writer.close()
    assert tidying.done == ["live", "bulk1", "inside", "bulk2", "inside", "between", "between", "between"]


async def test_what_is_due_does_not_wait_for_the_end_of_bulk_work(tmp_path: Path) -> None:
    tidying = Noted()
    tidying.due = True
    writer = Writer(open_for_writing(tmp_path / "a.db"), tmp_path / "a.db", tidying=tidying)
    try:
        for future in written(writer, tidying, [("bulk1", True), ("bulk2", True)]):
            await asyncio.wrap_future(future)
    finally:
        writer.close()
    assert tidying.done[:3] == ["between", "bulk1", "inside"]


async def test_a_failure_of_tidying_is_told_and_ends_with_the_next_success(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    tidying = Noted()
    tidying.fails = True
    writer = Writer(open_for_writing(path), path, tidying=tidying)
    try:
        await asyncio.wrap_future(writer.submit(lambda _: None))
        await until(lambda: writer.failure is not None)
        assert str(path) in str(writer.failure)
        tidying.fails = False
        await asyncio.wrap_future(writer.submit(lambda _: None))
        assert writer.failure is None
    finally:
        writer.close()


async def test_a_failure_while_the_log_is_copied_is_told(
    small_log: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> apsw.Connection:
        raise apsw.IOError("broken")

    monkeypatch.setattr("memory_service.store.tidying.open_for_reading", fail)
    await small_log.events.append_many([an_event(f"e{n}", f"word{n} " * 300) for n in range(100)])

    async def failed() -> bool:
        await small_log.events.append(an_event(f"x{len(tried)}"))
        tried.append(1)
        await asyncio.sleep(0.01)
        return small_log.health()["state"] == "failed"

    tried: list[int] = []
    async with asyncio.timeout(20):
        while not await failed():
            pass
