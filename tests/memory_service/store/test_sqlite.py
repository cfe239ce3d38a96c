"""What is true of the SQLite store in particular: its files, its threads, its upgrades."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.catalogue import texts
from homeagent_sdk.errors import Conflict, Overloaded, Unavailable
from homeagent_sdk.migrations import Migration
from memory_service.model import Term, ToolResult
from memory_service.store import database
from memory_service.store.connection import _MEANINGS, open_for_reading, open_for_writing
from memory_service.store.event_words import INDEXED_TOOL_CHARACTERS
from memory_service.store.frequencies import worth_asking
from memory_service.store.reader import Readers
from memory_service.store.sqlite import SqliteStore
from memory_service.store.writer import Writer
from tests.memory_service.samples import an_event


def refuse(_: apsw.Connection) -> None:
    raise ValueError("not this one")


async def test_it_opens_again_where_it_left_off(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    await store.events.append(an_event("e1", "cake"))
    await store.close()
    store = SqliteStore.open(tmp_path / "memory.db")
    search = await store.events.find([Term("cake", ("cak",))], ("owner",), (), 5)
    await store.close()
    assert [candidate.event.id for candidate in search.candidates] == ["e1"]


async def test_two_services_cannot_share_a_database(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    try:
        with pytest.raises(Conflict, match="another memory service") as caught:
            SqliteStore.open(tmp_path / "memory.db")
        assert "--data-dir" in (caught.value.hint or "")
    finally:
        await store.close()


async def test_commits_are_durable_and_deletions_thorough(tmp_path: Path) -> None:
    connection = open_for_writing(tmp_path / "memory.db")
    settings = [connection.execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous", "secure_delete")]
    connection.close()
    assert settings == ["wal", 2, 1]


async def test_a_reading_connection_cannot_write(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    connection = open_for_reading(tmp_path / "memory.db")
    with pytest.raises(apsw.ReadOnlyError):
        connection.execute("DELETE FROM event")
    connection.close()
    await store.close()


async def test_an_upgrade_is_preceded_by_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    await store.events.append(an_event("e1", "cake"))
    await store.close()
    now = len(database.MIGRATIONS)
    more = Migration(now + 1, "mood", "ALTER TABLE event ADD COLUMN mood TEXT")
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, more))
    await SqliteStore.open(tmp_path / "memory.db").close()
    copy = open_for_reading(tmp_path / f"memory.db.before-{now + 1}.bak")
    assert copy.execute("SELECT id FROM event").get == "e1"
    assert copy.execute("SELECT max(version) FROM schema_version").get == now
    copy.close()


async def test_the_end_of_a_huge_tool_output_is_kept_but_not_indexed(tmp_path: Path) -> None:
    output = "beginning " + "x " * INDEXED_TOOL_CHARACTERS + "ending"
    store = SqliteStore.open(tmp_path / "memory.db")
    await store.events.append(an_event("e1", tool_results=(ToolResult("read", output),)))
    start = await store.events.find([Term("", ("begin",))], ("owner",), (), 5)
    end = await store.events.find([Term("", ("end",))], ("owner",), (), 5)
    await store.close()
    assert start.candidates[0].event.tool_results[0].output == output
    assert end.candidates == ()


def test_the_rarest_words_are_asked_for_until_too_many_events_have_them() -> None:
    assert worth_asking((1_400, 3, 0, 50)) == [1, 3, 0]
    assert worth_asking((1_490, 3, 0, 50)) == [1, 3]
    assert worth_asking((9_000, 0)) == [0]
    assert worth_asking((0, 0)) == []
    assert len(worth_asking((1,) * 500)) == 96


async def test_a_piece_of_work_that_fails_does_not_spoil_its_group(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = open_for_writing(path)
    connection.execute("CREATE TABLE t (x)")
    held = threading.Event()
    writer = Writer(connection, path)
    try:
        first = writer.submit(lambda _: held.wait(10))
        good = [writer.submit(lambda c, n=n: c.execute("INSERT INTO t VALUES (?)", (n,)).fetchall()) for n in range(3)]
        bad = writer.submit(refuse)
        held.set()
        for future in (first, *good):
            await asyncio.wrap_future(future)
        with pytest.raises(ValueError, match="not this one"):
            await asyncio.wrap_future(bad)
    finally:
        writer.close()
    check = open_for_reading(path)
    assert [row[0] for row in check.execute("SELECT x FROM t ORDER BY x")] == [0, 1, 2]
    check.close()


async def test_a_full_queue_refuses_and_a_closed_writer_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    writer = Writer(open_for_writing(path), path, capacity=2, group=1)
    started, held = threading.Event(), threading.Event()

    def hold(_: apsw.Connection) -> Any:
        started.set()
        return held.wait(10)

    writer.submit(hold)
    started.wait(10)
    writer.submit(lambda _: None)
    last = writer.submit(lambda _: None)
    with pytest.raises(Overloaded, match="2 events wait"):
        writer.submit(lambda _: None)
    held.set()
    await asyncio.wrap_future(last)
    writer.close()
    with pytest.raises(Unavailable, match="shutting down"):
        writer.submit(lambda _: None)


async def test_closing_finishes_what_was_accepted(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    accepted = [asyncio.ensure_future(store.events.append(an_event(f"e{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(await asyncio.gather(*accepted))
    check = open_for_reading(tmp_path / "memory.db")
    assert check.execute("SELECT count(*) FROM event").get == 50
    check.close()


async def test_too_many_questions_at_once_are_refused(tmp_path: Path) -> None:
    open_for_writing(tmp_path / "a.db").close()
    held = threading.Event()
    readers = Readers(tmp_path / "a.db", lambda _: None, threads=1, capacity=2)
    waiting = [asyncio.ensure_future(readers.run(lambda _: held.wait(10))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="2 questions"):
        await readers.run(lambda _: None)
    held.set()
    await asyncio.gather(*waiting)
    assert await readers.run(lambda c: c.execute("SELECT 1").get) == 1
    await asyncio.to_thread(readers.close)


def test_every_error_of_sqlite_has_its_texts_in_both_languages() -> None:
    for _, *keys in _MEANINGS:
        for key in keys:
            assert key in texts("memory", "en") and key in texts("memory", "zh")
