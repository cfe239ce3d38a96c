"""Copies of databases that are written to meanwhile."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from homeagent_sdk.migrations import Migration, migrate
from homeagent_sdk.snapshots import Copies, Snapshot

ROWS = 400
MIGRATIONS = (
    Migration(1, "table", "CREATE TABLE thing (number INTEGER PRIMARY KEY, body BLOB) STRICT"),
    Migration(2, "index", "CREATE INDEX thing_by_size ON thing (length(body))"),
)


def opened(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    return connection


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "owner" / "things.db"
    path.parent.mkdir()
    connection = opened(path)
    connection.execute("PRAGMA journal_mode = WAL")
    migrate(connection, MIGRATIONS)
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO thing VALUES (?, randomblob(10000))", [(number,) for number in range(ROWS)])
    connection.execute("COMMIT")
    connection.close()
    return path


@pytest.fixture
def writer(database: Path) -> Iterator[threading.Event]:
    """Somebody who adds, changes and deletes without pause, and moves the log into the file; the event counts."""
    stopping, has_written = threading.Event(), threading.Event()

    def write() -> None:
        connection = opened(database)
        number = 0
        while not stopping.is_set():
            with connection:
                connection.execute("INSERT INTO thing VALUES (NULL, randomblob(20000))")
                connection.execute("UPDATE thing SET body = x'00' WHERE number = ?", (number % ROWS,))
                connection.execute("DELETE FROM thing WHERE number = ?", ((number * 7 + 3) % ROWS,))
            connection.execute("PRAGMA wal_checkpoint")
            number += 1
            has_written.set()
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    yield has_written
    stopping.set()
    thread.join()


def contents(path: Path) -> Any:
    connection = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return connection.execute("SELECT count(*), min(length(body)), max(number) FROM thing").get
    finally:
        connection.close()


def test_a_copy_is_exactly_of_the_moment_whatever_is_written_meanwhile(
    database: Path, writer: threading.Event, tmp_path: Path
) -> None:
    writer.wait(5)
    connection = opened(database)
    snapshot = Snapshot(connection)
    expected = connection.execute("SELECT count(*), min(length(body)), max(number) FROM thing").get
    sizes = []
    for size in snapshot.copy_to(tmp_path / "copy.db"):
        writer.clear()
        assert writer.wait(5), "the writer had to wait for the copy"
        sizes.append(size)
    assert len(sizes) > 5 and sizes == sorted(sizes) and sizes[-1] == snapshot.size_bytes
    snapshot.close()
    assert contents(tmp_path / "copy.db") == expected
    after = opened(database)
    assert after.execute("SELECT max(number) FROM thing").get > expected[2]
    after.close()
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    assert snapshot.schema_version == 2


def test_the_standard_library_will_do(database: Path, tmp_path: Path) -> None:
    snapshot = Snapshot(sqlite3.connect(database, isolation_level=None))
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("DELETE FROM thing")
    other.close()
    assert list(snapshot.copy_to(tmp_path / "copy.db")) == [snapshot.size_bytes]
    snapshot.close()
    assert contents(tmp_path / "copy.db") == (ROWS, 10_000, ROWS - 1)


def test_a_copy_that_is_given_up_leaves_nothing(database: Path, tmp_path: Path) -> None:
    snapshot = Snapshot(opened(database))
    slices = snapshot.copy_to(tmp_path / "copy.db")
    next(slices)
    assert (tmp_path / "copy.db").exists()
    slices.close()
    snapshot.close()
    assert not list(tmp_path.glob("copy*"))


def test_a_copy_never_replaces_a_file(database: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    snapshot = Snapshot(opened(database))
    with pytest.raises(Conflict):
        next(snapshot.copy_to(tmp_path / "copy.db"))
    snapshot.close()
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_what_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"nothing of the sort" * 100)
    with pytest.raises(Unavailable, match=r"no\.db"):
        Snapshot(opened(tmp_path / "no.db"))


# -- a service's copies -----------------------------------------------------------------------------------------------


@pytest.fixture
def copies(database: Path) -> Copies:
    return Copies(database.parent / "backup", {"things.db": lambda: opened(database)})


async def test_copies_lie_there_until_the_iterator_is_closed(database: Path, copies: Copies) -> None:
    folder = database.parent / "backup"
    async with aclosing(copies.hold("b1")) as items:
        first = await anext(items)
        other = opened(database)
        other.execute("DELETE FROM thing")
        other.close()
        found = [first]
        while found[-1]["type"] != "done":
            found.append(await anext(items))
        assert contents(folder / "b1" / "things.db") == (ROWS, 10_000, ROWS - 1)
        assert stat.S_IMODE((folder / "b1").stat().st_mode) == 0o700
    assert first["type"] == "frozen" and first["bytes"] >= ROWS * 10_000
    size = found[-1]["databases"][0].pop("bytes")
    assert size == first["bytes"]
    assert found[-1] == {"type": "done", "databases": [{"name": "things.db", "schema": 2}]}
    assert not folder.exists()


async def test_one_that_is_cancelled_in_the_middle_leaves_nothing_and_the_next_works(
    database: Path, copies: Copies
) -> None:
    has_begun = asyncio.Event()

    async def run() -> None:
        async with aclosing(copies.hold("b1")) as items:
            async for _ in items:
                has_begun.set()

    task = asyncio.create_task(run())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (database.parent / "backup").exists()
    async with aclosing(copies.hold("b2")) as items:
        assert (await anext(items))["type"] == "frozen"
    # Nobody holds the log any more.
    connection = opened(database)
    connection.execute("DELETE FROM thing WHERE number = 1")
    assert connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE) == (0, 0)
    connection.close()


async def test_there_is_one_at_a_time(copies: Copies) -> None:
    async with aclosing(copies.hold("b1")) as items:
        await anext(items)
        with pytest.raises(Conflict):
            await anext(copies.hold("b2"))
        async for item in items:
            if item["type"] == "done":
                break


@pytest.mark.parametrize("name", ["", "../b1", "a/b", "b.1", "é"])
async def test_a_name_that_could_be_a_path_is_refused(copies: Copies, name: str) -> None:
    with pytest.raises(Invalid):
        await anext(copies.hold(name))


async def test_what_a_killed_one_left_is_cleared(database: Path, copies: Copies) -> None:
    left = database.parent / "backup" / "old" / "things.db"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    copies.clear()
    assert not left.parent.parent.exists()
    copies.clear()


async def test_a_disk_without_room_is_named_and_nothing_is_left(database: Path, copies: Copies) -> None:
    (database.parent / "backup").symlink_to("/proc/no-such-folder")
    with pytest.raises(Unavailable, match="backup"):
        await anext(copies.hold("b1"))
    os.unlink(database.parent / "backup")
    async with aclosing(copies.hold("b2")) as items:
        assert (await anext(items))["type"] == "frozen"
