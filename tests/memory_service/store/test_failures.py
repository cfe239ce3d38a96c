"""Disks that are full or broken, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from homeagent_sdk.errors import Conflict, Unavailable
from memory_service.model import Term
from memory_service.store.connection import open_for_reading, open_for_writing
from memory_service.store.schema import MIGRATIONS
from memory_service.store.sqlite import SqliteStore
from tests.memory_service.samples import an_event

ROOT = Path(__file__).resolve().parents[3]

WRITE_FOREVER = """
import asyncio, sys
from pathlib import Path
from memory_service.store.sqlite import SqliteStore
from tests.memory_service.samples import an_event

async def lane(store, number):
    for turn in range(1_000_000):
        id = f"{sys.argv[2]}-{number}-{turn}"
        await store.events.append(an_event(id, f"turn{turn} 张伟 said something", "noted " * 20, sees=("owner", "bea")))
        print(id, flush=True)

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    await asyncio.gather(*(lane(store, number) for number in range(8)))

asyncio.run(main())
"""

FILL_THE_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from homeagent_sdk.errors import HomeAgentError
from memory_service.store.sqlite import SqliteStore
from tests.memory_service.samples import an_event

async def main(folder, by_limit):
    store = SqliteStore.open(folder / "memory.db")
    if by_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    else:
        (folder / "filler").write_bytes(bytes(1_000_000))
    stored, error = 0, None
    while error is None:
        try:
            await store.events.append(an_event(f"e{stored}", "word " * 2_000))
            stored += 1
        except HomeAgentError as caught:
            error = caught
    failed = store.health()["state"]
    (folder / "filler").unlink(missing_ok=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    again = await store.events.append(an_event(f"e{stored}", "there is room again"))
    print(json.dumps({"stored": stored, "error": error.to_wire(), "failed": failed, "again": again,
                      "then": store.health()["state"]}))
    await store.close()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2] == "limit"))
"""


def check_whole(path: Path) -> list[str]:
    """Check that a database is sound and its index in step with its events, and return the ids."""
    connection = open_for_writing(path)
    try:
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        connection.execute("INSERT INTO event_words (event_words, rank) VALUES ('integrity-check', 0)")
        ids = [row[0] for row in connection.execute("SELECT id FROM event ORDER BY number")]
        numbers = [row[0] for row in connection.execute("SELECT number FROM event ORDER BY number")]
        assert [row[0] for row in connection.execute("SELECT id FROM event_words_docsize ORDER BY id")] == numbers
        assert connection.execute("PRAGMA foreign_key_check").get is None
        assert [row[0] for row in connection.execute("SELECT item FROM embedding_queue ORDER BY item")] == numbers
        return ids
    finally:
        connection.close()


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.chaos
def test_killed_while_appending_it_keeps_every_acknowledged_event(tmp_path: Path) -> None:
    dice = random.Random(11)
    path = tmp_path / "memory.db"
    acknowledged: list[str] = []
    for round_ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(path), str(round_)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        acknowledged += _read(child.stdout, dice.randint(30, 200))
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += child.stdout.read().split()
        child.stdout.close()
        child.wait()
        stored = check_whole(path)
        assert set(acknowledged) <= set(stored)
        # At most what each of the eight lanes had under way may be there without having been acknowledged.
        assert len(stored) - len(acknowledged) <= 8 * (round_ + 1)
    _, found = asyncio.run(_found(path, "turn"))
    assert found


def _read(lines: IO[str], count: int) -> list[str]:
    return [lines.readline().strip() for _ in range(count)]


async def _found(path: Path, word: str) -> tuple[int, int]:
    store = SqliteStore.open(path)
    search = await store.events.find([Term("张伟", ("张伟",)), Term(word, (word,))], ("owner", "bea"), (), 5)
    await store.close()
    return search.total, len(search.candidates)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Give a folder with little room, and how that came about: a small tmpfs, or where that needs root, a limit."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield folder, "tmpfs" if mounted else "limit"
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def check_disk_full(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["error"]["code"] == "unavailable"
    assert str(folder / "memory.db") in told["error"]["message"]
    assert "what was stored before is safe" in told["error"]["hint"]
    assert (told["failed"], told["again"], told["then"]) == ("failed", True, "running")
    assert check_whole(folder / "memory.db") == [f"e{n}" for n in range(told["stored"] + 1)]


def test_on_a_full_disk_appends_are_refused_and_nothing_is_lost(small_disk: tuple[Path, str]) -> None:
    folder, how = small_disk
    check_disk_full(run(FILL_THE_DISK, str(folder), how), folder)


def test_at_a_limit_of_file_size_appends_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    check_disk_full(run(FILL_THE_DISK, str(tmp_path), "limit"), tmp_path)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    path.write_bytes(b"these are my notes, not a database " * 200)
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="not a database") as caught:
        SqliteStore.open(path)
    assert str(path) in caught.value.message
    assert "put back a backup" in (caught.value.hint or "")
    assert path.read_bytes() == before


async def test_a_damaged_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    store = SqliteStore.open(path)
    for n in range(40):
        await store.events.append(an_event(f"e{n}", f"cake number{n} " * 100))
    await store.close()
    content = bytearray(path.read_bytes())
    content[4_096:] = b"\xa5" * (len(content) - 4_096)
    path.write_bytes(content)
    with pytest.raises(Unavailable, match="damaged"):
        SqliteStore.open(path)
    assert path.read_bytes() == content


async def test_damage_that_shows_later_is_told_to_whoever_asks(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    store = SqliteStore.open(path)
    for n in range(400):
        await store.events.append(an_event(f"e{n}", f"cake number{n} " + "filler " * 100))
    await store.close()
    connection = open_for_reading(path)
    leaf = connection.execute(
        "SELECT pageno FROM dbstat WHERE name = 'event' AND pagetype = 'leaf' ORDER BY pageno LIMIT 1 OFFSET 5"
    ).get
    connection.close()
    content = bytearray(path.read_bytes())
    content[(leaf - 1) * 4_096 : leaf * 4_096] = b"\xa5" * 4_096
    path.write_bytes(content)
    store = SqliteStore.open(path)
    try:
        with pytest.raises(Unavailable, match="damaged"):
            await store.events.find([Term("cake", ("cak",))], ("owner",), (), 400)
        assert store.health()["state"] == "failed"
    finally:
        await store.close()


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match=r"memory\.db\.lock: the file cannot be opened"):
        SqliteStore.open(tmp_path / "file" / "memory.db")


def test_a_database_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    asyncio.run(SqliteStore.open(path).close())
    connection = open_for_writing(path)
    newer = len(MIGRATIONS) + 1
    connection.execute("INSERT INTO schema_version VALUES (?, 'the future', 0)", (newer,))
    connection.close()
    with pytest.raises(Conflict, match=f"version {newer}"):
        SqliteStore.open(path)
