"""The disk that loses what was not synced has teeth: whoever does not sync, loses; whoever does, does not."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from tests.chaos.memory.power_cut import SECTOR_BYTES, Disk, register, system_calls

pytestmark = pytest.mark.chaos

_names = (f"power-cut-{number}" for number in itertools.count())
SEEDS = range(24)


def survivors(folder: Path, seed: int, *settings: str, lies: bool = False) -> tuple[set[int], set[int], bool]:
    """Write until the power goes; returns what was acknowledged, what is there afterwards, and whether it is whole."""
    dice = random.Random(seed)
    disk = Disk(lies=lies)
    name = next(_names)
    access = register(disk, name)
    path = folder / f"{name}.db"
    acknowledged = set()
    connection = apsw.Connection(str(path), vfs=name)
    for setting in settings:
        connection.execute(f"PRAGMA {setting}")
    connection.execute("PRAGMA wal_autocheckpoint = 12")
    connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, text TEXT)")
    disk.cut_after(dice.randint(1, 250), dice, lambda: None)
    with pytest.raises(apsw.Error):
        for number in itertools.count():
            connection.execute("INSERT INTO kept VALUES (?, ?)", (number, f"{number} " * dice.randint(1, 2_000)))
            acknowledged.add(number)
    with pytest.raises(apsw.Error):
        connection.execute("INSERT INTO kept VALUES (-1, '')")
    with suppress(apsw.Error):  # it would like to tidy up
        connection.close(True)
    access.unregister()
    return acknowledged, *_reopened(path)


def _reopened(path: Path) -> tuple[set[int], bool]:
    connection = apsw.Connection(str(path))
    try:
        if connection.execute("PRAGMA integrity_check").get != "ok":
            return set(), False
        if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'kept'").get is None:
            return set(), True
        rows = list(connection.execute("SELECT number, text FROM kept"))
        return {number for number, text in rows if set(str(text).split()) == {str(number)}}, True
    except apsw.Error:
        return set(), False
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["WAL", "DELETE", "TRUNCATE"])
def test_who_syncs_loses_nothing(tmp_path: Path, mode: str) -> None:
    for seed in SEEDS:
        acknowledged, there, is_whole = survivors(tmp_path, seed, f"journal_mode = {mode}", "synchronous = EXTRA")
        assert is_whole and acknowledged <= there and len(there - acknowledged) <= 1, seed


def test_full_is_enough_in_wal_mode(tmp_path: Path) -> None:
    for seed in SEEDS:
        acknowledged, there, is_whole = survivors(tmp_path, seed, "journal_mode = WAL", "synchronous = FULL")
        assert is_whole and acknowledged <= there and len(there - acknowledged) <= 1, seed


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
def test_who_syncs_less_loses_what_was_acknowledged(tmp_path: Path, level: str) -> None:
    found: Counter[str] = Counter()
    for seed in SEEDS:
        acknowledged, there, is_whole = survivors(tmp_path, seed, "journal_mode = WAL", f"synchronous = {level}")
        found["lost"] += not acknowledged <= there
        found["broken"] += not is_whole
    # NORMAL syncs before a checkpoint, which is why it loses rows, but never the database.
    assert found["lost"] >= 8 and (found["broken"] > 0) is (level == "OFF"), found


def test_a_disk_that_lies_loses_what_was_acknowledged(tmp_path: Path) -> None:
    found = [survivors(tmp_path, seed, "journal_mode = WAL", "synchronous = FULL", lies=True) for seed in SEEDS]
    assert sum(not acknowledged <= there for acknowledged, there, _ in found) >= 8


def test_a_name_that_was_deleted_comes_back_unless_its_folder_is_synced(tmp_path: Path) -> None:
    # SQLite says so itself: with a rollback journal, FULL may lose the last transaction, EXTRA does not.
    lost = 0
    for seed in range(60):
        acknowledged, there, is_whole = survivors(tmp_path, seed, "journal_mode = DELETE", "synchronous = FULL")
        assert is_whole and len(acknowledged - there) <= 1, seed
        lost += not acknowledged <= there
    assert lost > 0


def written(disk: Disk, path: Path, content: bytes) -> None:
    """Write a file both for real and on the disk that is looked at."""
    disk.see(str(path), is_new=not path.exists())
    path.write_bytes(content)
    disk.write(str(path), 0, content)


def fates(tmp_path: Path, prepare: Callable[[Disk, Path], None]) -> set[bytes | None]:
    """Return every content that a file may have after a cut, None for that it is not there."""
    seen: set[bytes | None] = set()
    for seed in range(80):
        folder = tmp_path / str(seed)
        folder.mkdir(parents=True)
        disk = Disk()
        with system_calls(disk):
            prepare(disk, folder)
            disk.cut(random.Random(seed))
        file = folder / "file"
        seen.add(file.read_bytes() if file.exists() else None)
    return seen


def test_a_page_is_torn_at_the_border_of_a_sector(tmp_path: Path) -> None:
    def prepare(disk: Disk, folder: Path) -> None:
        path = folder / "file"
        path.write_bytes(b"o" * 4 * SECTOR_BYTES)
        written(disk, path, b"n" * 4 * SECTOR_BYTES)

    left = fates(tmp_path, prepare)
    assert b"o" * 4 * SECTOR_BYTES in left and b"n" * 4 * SECTOR_BYTES in left and len(left) > 6
    for content in left:
        assert content is not None
        sectors = {content[start : start + SECTOR_BYTES] for start in range(0, len(content), SECTOR_BYTES)}
        assert sectors <= {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES}


def test_a_file_that_was_synced_is_whole_but_may_have_no_name(tmp_path: Path) -> None:
    def prepare(disk: Disk, folder: Path) -> None:
        written(disk, folder / "file", b"content")
        disk.sync(str(folder / "file"))

    assert fates(tmp_path, prepare) == {b"content", None}


def test_a_rename_holds_once_the_folder_is_synced(tmp_path: Path) -> None:
    def rename(disk: Disk, folder: Path) -> None:
        (folder / "file").write_bytes(b"old")
        disk.see(str(folder / "file"), is_new=False)
        written(disk, folder / "new", b"new")
        disk.sync(str(folder / "new"), with_folder=True)
        (folder / "new").replace(folder / "file")

    def rename_and_sync(disk: Disk, folder: Path) -> None:
        rename(disk, folder)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    assert fates(tmp_path / "one", rename) == {b"old", b"new"}
    assert fates(tmp_path / "two", rename_and_sync) == {b"new"}
