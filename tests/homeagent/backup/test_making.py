"""Backups of a HomeAgent that does not run, and what makes a backup whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homeagent.backup import making, manifest
from homeagent.backup.contents import DATABASES
from homeagent.backup.making import Request, make
from homeagent_sdk.errors import Conflict, Denied, Internal, Invalid, NotFound, Unavailable
from homeagent_sdk.paths import DataDir
from kernel.config.schema import MIGRATIONS as CONFIG
from kernel.journal.schema import MIGRATIONS as JOURNAL
from memory_service.store.schema import MIGRATIONS as MEMORY
from provider_service.ledger import MIGRATIONS as USAGE
from tests.homeagent.backup.conftest import notes_of
from tests.homeagent.conftest import Command, FakeSystem

Watched = list[tuple[str, int, int]]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backups" / "b1"


async def backed_up(data: DataDir, target: Path, **options: bool) -> list[str]:
    """Make a backup; return the files that it lists besides the databases."""
    made = await make(data, Request(target, **options), lambda *_: None)
    assert manifest.read(target) == made
    manifest.check(target, made, lambda _: None)
    paths = [file.path for file in made.files]
    assert set(paths) >= DATABASES.keys()
    return [path for path in paths if path not in DATABASES]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def modes_of(folder: Path) -> set[tuple[str, int]]:
    paths = (folder, *folder.rglob("*"))
    return {("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)) for path in paths}


def test_the_versions_that_this_program_understands_are_those_of_its_services() -> None:
    newest = {
        "kernel/config.db": len(CONFIG),
        "kernel/journal.db": len(JOURNAL),
        "memory/memory.db": len(MEMORY),
        "provider/usage.db": len(USAGE),
    }
    assert newest == DATABASES, "a migration was added: say so in homeagent/backup/contents.py"


async def test_it_has_what_is_in_the_write_ahead_log_too(data: DataDir, target: Path) -> None:
    await backed_up(data, target)
    for name in DATABASES:
        assert notes_of(target / name) == [f"{name} one", f"{name} two"]


async def test_secrets_and_plugins_data_are_left_out_unless_asked_for(data: DataDir, target: Path) -> None:
    always = {"memory/media/ab/abcd", "memory/conversations/2026-12-01.jsonl", "provider/adapters/mine.lua"}
    assert set(await backed_up(data, target)) == always
    assert files_below(target) == always | DATABASES.keys() | {"manifest.json"}
    assert b"sk-secret" not in b"".join((target / name).read_bytes() for name in files_below(target))
    with_keys = await backed_up(data, target.with_name("b2"), with_keys=True)
    assert set(with_keys) == always | {"keys/operator.key", "provider/keys/deepseek"}
    with_data = await backed_up(data, target.with_name("b3"), with_plugin_data=True)
    assert set(with_data) == always | {"plugin_data/timer/timers.json", "plugin_data/diary/diary.sqlite"}
    assert notes_of(target.with_name("b3") / "plugin_data/diary/diary.sqlite") == ["dear diary"]


async def test_only_its_owner_can_read_it(data: DataDir, target: Path) -> None:
    (data.root / "memory/media/ab/abcd").chmod(0o644)
    await backed_up(data, target, with_keys=True)
    assert modes_of(target) == {("file", 0o600), ("folder", 0o700)}


async def test_nothing_can_be_started_meanwhile(data: DataDir, target: Path) -> None:
    held: list[bool] = []

    def watch(stage: str, done: int, of: int) -> None:
        for lock in (data.run / "launcher.lock", data.run / "hub.lock", data.memory / "memory.db.lock"):
            with lock.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(stage == "copy")
                else:
                    held.append(stage != "copy")

    await make(data, Request(target), watch)
    assert held and all(held)


async def test_a_memory_service_that_runs_alone_is_noticed(data: DataDir, target: Path) -> None:
    with (data.memory / "memory.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="runs"):
            await make(data, Request(target), lambda *_: None)
    assert not list(target.parent.iterdir())


async def test_what_killed_services_left_is_removed(data: DataDir, target: Path) -> None:
    left = data.memory / "backup" / "old" / "memory.db"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    await backed_up(data, target)
    assert not (data.memory / "backup").exists()


@pytest.mark.parametrize("name", sorted(DATABASES))
async def test_without_one_of_the_databases_there_is_no_backup(data: DataDir, target: Path, name: str) -> None:
    (data.root / name).unlink()
    with pytest.raises(NotFound, match=name):
        await make(data, Request(target), lambda *_: None)
    assert not list(target.parent.iterdir())


async def test_a_damaged_database_is_named_and_there_is_no_backup(data: DataDir, target: Path) -> None:
    path = data.memory / "memory.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executemany("INSERT INTO note VALUES (?)", [("x" * 500,)] * 200)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(Invalid, match=r"memory\.db is damaged"):
        await make(data, Request(target), lambda *_: None)
    assert not list(target.parent.iterdir())


@pytest.mark.parametrize("place", ["memory/x", "kernel", "plugin_data/timer/b", "."])
async def test_it_cannot_lie_in_a_folder_of_a_service(data: DataDir, place: str) -> None:
    with pytest.raises(Invalid, match="HomeAgent itself"):
        await make(data, Request(data.root / place), lambda *_: None)


async def test_nothing_that_exists_is_replaced(data: DataDir, target: Path) -> None:
    os.makedirs(target)
    await backed_up(data, target)
    before = (target / "manifest.json").read_bytes()
    with pytest.raises(Conflict, match="exists already"):
        await make(data, Request(target), lambda *_: None)
    assert (target / "manifest.json").read_bytes() == before


async def test_a_backup_that_was_killed_is_cleared_by_the_next_but_not_one_that_is_being_made(
    data: DataDir, target: Path
) -> None:
    left, busy = (target.parent / f".{name}.homeagent-partial" for name in ("left", "busy"))
    for folder in (left, busy):
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")
    lock = os.open(busy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        await backed_up(data, target)
        assert (left.exists(), busy.exists()) == (False, True)
    finally:
        os.close(lock)


async def test_a_disk_without_room_is_noticed_before_anything_is_copied(
    data: DataDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(data.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Unavailable, match="no room"):
        await make(data, Request(target), lambda *_: None)
    assert not list(target.parent.iterdir())


def test_a_disk_that_gets_full_meanwhile_leaves_nothing(data: DataDir, target: Path) -> None:
    (data.memory / "media/ab/abcd").write_bytes(b"x" * 300_000)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from homeagent.command import main; main()"
    )
    arguments = [sys.executable, "-c", program, "backup", str(target), "--data-dir", str(data.root)]
    environment = {**os.environ, "HOMEAGENT_LANG": "en"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1, done.stderr
    assert "abcd" in done.stderr and "check that the disk" in done.stderr
    assert not list(target.parent.iterdir())


def test_ctrl_c_leaves_nothing(data: DataDir, target: Path) -> None:
    program = (
        "import os, signal\n"
        "from homeagent.backup import making\n"
        "slices = making._slices\n"
        "def interrupted(*arguments):\n"
        "    for copied in slices(*arguments):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield copied\n"
        "making._slices = interrupted\n"
        "from homeagent.command import main; main()"
    )
    arguments = [sys.executable, "-c", program, "backup", str(target), "--data-dir", str(data.root)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130, done.stderr
    assert not list(target.parent.iterdir())


# -- of a running system ----------------------------------------------------------------------------------------------


class Services:
    """A kernel that gives what the test says; the copies lie where the services would put them."""

    def __init__(self, data: DataDir, system: FakeSystem) -> None:
        self.data = data
        self.is_closed = False
        self.names = dict.fromkeys(DATABASES, "")
        self.forgets_to_copy = ""
        self.links: dict[str, Path] = {}
        self.error: Exception | None = None
        peer = system.bus.peers["kernel"]
        peer.serve_stream("kernel.backup", self._backup)

    async def _backup(self, body: Any, call: Any) -> Any:
        try:
            yield {"type": "frozen", "time": 1_796_000_000.0, "paused_ms": 3.5, "bytes": 100_000}
            yield {"type": "copied", "bytes": 50_000, "of": 100_000}
            if self.error is not None:
                raise self.error
            self._copy(body["backup"])
            databases = [
                {"owner": name.split("/")[0], "name": name.split("/")[1], "bytes": 1, "schema": 1}
                for name in self.names
            ]
            yield {"type": "done", "time": 1_796_000_000.0, "paused_ms": 3.5, "databases": databases}
            raise AssertionError("the stream was read beyond its last item")
        finally:
            self.is_closed = True

    def _copy(self, backup: str) -> None:
        for name in DATABASES:
            owner, file = name.split("/")
            copy = self.data.root / owner / "backup" / backup / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            if name in self.links:
                copy.symlink_to(self.links[name])
            elif name != self.forgets_to_copy:
                with sqlite3.connect(self.data.root / name) as source, sqlite3.connect(copy) as target:
                    source.backup(target)
                source.close(), target.close()


@pytest.fixture
def services(data: DataDir, system: FakeSystem, monkeypatch: pytest.MonkeyPatch) -> Services:
    monkeypatch.setattr(making, "is_running", lambda _: True)
    return Services(data, system)


async def test_the_copies_of_the_services_are_collected(data: DataDir, target: Path, services: Services) -> None:
    seen: Watched = []
    made = await make(data, Request(target), lambda *what: seen.append(what))
    assert (made.time, made.paused_ms) == (1_796_000_000.0, 3.5)
    for name in DATABASES:
        assert notes_of(target / name) == [f"{name} one", f"{name} two"]
    assert {("copy", 50_000, 100_000), ("copy", 100_000, 100_000)} <= set(seen)
    assert seen[-1][0] == "check" and seen[-1][1] == seen[-1][2]


async def test_a_service_that_could_not_do_its_part_leaves_no_backup(
    data: DataDir, target: Path, services: Services
) -> None:
    services.error = Unavailable("There is no backup: the memory service is not there")
    with pytest.raises(Unavailable, match="memory service"):
        await make(data, Request(target), lambda *_: None)
    assert services.is_closed and not list(target.parent.iterdir())


async def test_a_copy_that_vanished_is_named(data: DataDir, target: Path, services: Services) -> None:
    services.forgets_to_copy = "memory/memory.db"
    with pytest.raises(Unavailable, match="memory service"):
        await make(data, Request(target), lambda *_: None)
    assert not list(target.parent.iterdir())


async def test_a_service_cannot_have_another_file_collected(
    data: DataDir, target: Path, services: Services, tmp_path: Path
) -> None:
    secret = tmp_path / "diary"
    secret.write_text("of the owner")
    services.links = {"provider/usage.db": secret}
    with pytest.raises((Unavailable, Denied)):
        await make(data, Request(target), lambda *_: None)
    assert secret.read_text() == "of the owner" and not list(target.parent.iterdir())


async def test_a_service_with_other_databases_is_not_understood(
    data: DataDir, target: Path, services: Services
) -> None:
    del services.names["provider/usage.db"]
    with pytest.raises(Internal, match=r"usage\.db"):
        await make(data, Request(target), lambda *_: None)


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_where_it_is_and_keeps_as_many_as_told(
    homeagent: Command, data: DataDir, tmp_path: Path
) -> None:
    folder = tmp_path / "nas"
    (folder / "photos").mkdir(parents=True)
    for number in (1, 2, 3):
        ended = homeagent("backup", str(folder / f"b{number}"))
        assert ended.exit_code == 0, ended.stderr
        assert ended.stdout == f"{folder / f'b{number}'}\n"
    foreign = json.loads((folder / "b1" / "manifest.json").read_text())
    shutil.copytree(folder / "b1", folder / "other")
    (folder / "other" / "manifest.json").write_text(json.dumps({**foreign, "data_dir": "/srv/another"}))
    ended = homeagent("backup", str(folder / "b4"), "--keep", "2", "--json")
    assert ended.json["removed"] == [str(folder / "b2"), str(folder / "b1")]
    assert {path.name for path in folder.iterdir()} == {"photos", "other", "b3", "b4"}


def test_with_keys_it_warns(homeagent: Command, data: DataDir, tmp_path: Path) -> None:
    ended = homeagent("backup", str(tmp_path / "b"), "--with-keys")
    assert ended.exit_code == 0 and "keys in plain text" in ended.stderr
    assert "plain text" not in homeagent("backup", str(tmp_path / "c")).stderr


def test_by_default_it_lies_in_the_data_directory(homeagent: Command, data: DataDir) -> None:
    ended = homeagent("backup", "--json")
    assert Path(ended.json["path"]).parent == data.root / "backups"
    assert ended.json["bytes"] == sum(file["bytes"] for file in ended.json["files"])
