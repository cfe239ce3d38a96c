"""Putting a backup back: all of it, or none, or it is gone on with."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from homeagent.backup import restoring
from homeagent.backup.contents import DATABASES
from homeagent.backup.making import Request, make
from homeagent.launcher import preflight
from homeagent.launcher.launcher import up
from homeagent.launcher.options import Options
from homeagent_sdk.errors import Conflict, HomeAgentError, Invalid, NotFound, Unavailable
from homeagent_sdk.paths import DataDir
from tests.homeagent.backup.conftest import notes_of, write_database
from tests.homeagent.conftest import Command

KILLER = """
import os, sys
from pathlib import Path
from homeagent.backup.restoring import restore
from homeagent_sdk.paths import DataDir
import apsw

def counted(function, left):
    def step(*arguments, **options):
        if left[0] == 0:
            os._exit(9)
        left[0] -= 1
        return function(*arguments, **options)
    return step

for line in sys.stdin:
    child = os.fork()
    if not child:
        left = [int(line)]
        for name in ("rename", "replace", "link", "unlink", "mkdir", "rmdir"):
            setattr(os, name, counted(getattr(os, name), left))
        restore(DataDir(sys.argv[1]), Path(sys.argv[2]), lambda *_: None)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
async def backup(data: DataDir, tmp_path: Path) -> Path:
    """A backup; after it, much has happened."""
    target = tmp_path / "backup"
    await make(data, Request(target, with_keys=True, with_plugin_data=True), lambda *_: None)
    for name in DATABASES:
        write_database(data.root / name, DATABASES[name], f"{name} three")
    (data.root / "memory/conversations/2026-12-02.jsonl").write_text("later\n")
    (data.root / "memory/media/ab/ef01").parent.mkdir(exist_ok=True)
    (data.root / "memory/media/ab/ef01").write_text("another picture")
    (data.root / "provider/adapters/mine.lua").write_text("-- changed")
    return target


def put_back(data: DataDir, backup: Path) -> restoring.Plan:
    return restoring.restore(data, backup, lambda *_: None)


def assert_restored(data: DataDir) -> None:
    for name in DATABASES:
        assert not (data.root / f"{name}-wal").exists()
        assert notes_of(data.root / name) == [f"{name} one", f"{name} two"]
    assert (data.root / "provider/adapters/mine.lua").read_text() == "-- mine"
    assert not (data.root / "memory/conversations/2026-12-02.jsonl").exists()
    assert not (data.root / "restore").exists()
    preflight.check_restore(data)


def assert_as_before(data: DataDir) -> None:
    for name in DATABASES:
        assert notes_of(data.root / name) == [f"{name} one", f"{name} two", f"{name} three"]
    assert (data.root / "provider/adapters/mine.lua").read_text() == "-- changed"
    assert (data.root / "memory/conversations/2026-12-02.jsonl").read_text() == "later\n"


def test_everything_is_again_as_it_was_and_what_there_was_is_kept(data: DataDir, backup: Path) -> None:
    plan = put_back(data, backup)
    assert_restored(data)
    aside = data.root / plan.aside
    for name in DATABASES:
        assert notes_of(aside / name) == [f"{name} one", f"{name} two", f"{name} three"]
        assert stat.S_IMODE((data.root / name).stat().st_mode) == 0o600
    assert (aside / "memory/conversations/2026-12-02.jsonl").read_text() == "later\n"
    assert (data.root / "memory/media/ab/ef01").read_text() == "another picture"


def test_what_was_replaced_can_be_put_back_the_same_way(data: DataDir, backup: Path) -> None:
    plan = put_back(data, backup)
    put_back(data, data.root / plan.aside)
    assert_as_before(data)


def test_it_is_put_into_a_directory_that_never_was(backup: Path, tmp_path: Path) -> None:
    new = DataDir(tmp_path / "new machine" / "data")
    plan = put_back(new, backup)
    assert_restored(new)
    assert not (new.root / plan.aside).exists()


def test_a_damaged_database_is_replaced_and_kept_with_its_log(data: DataDir, backup: Path) -> None:
    (data.memory / "memory.db").write_bytes(b"no database" * 1000)
    (data.memory / "memory.db-wal").write_bytes(b"no log")
    plan = put_back(data, backup)
    assert_restored(data)
    aside = data.root / plan.aside / "memory"
    assert (aside / "memory.db").read_bytes() == b"no database" * 1000
    assert (aside / "memory.db-wal").read_bytes() == b"no log"


@pytest.mark.parametrize("lock", ["run/launcher.lock", "run/hub.lock", "memory/memory.db.lock"])
def test_while_anything_runs_it_is_refused(data: DataDir, backup: Path, lock: str) -> None:
    with (data.root / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="runs"):
            put_back(data, backup)
    assert_as_before(data)


def _is_gone(backup: Path) -> None:
    (backup / "memory/memory.db").unlink()


def _is_changed(backup: Path) -> None:
    connection = sqlite3.connect(backup / "memory/memory.db")
    with connection:
        connection.execute("INSERT INTO note VALUES ('forged')")
    connection.close()


def _is_a_link(backup: Path) -> None:
    (backup / "memory/memory.db").rename(backup / "elsewhere")
    (backup / "memory/memory.db").symlink_to(backup / "elsewhere")


def _lacks_a_database(backup: Path) -> None:
    _edit(backup, lambda found: found["files"].pop(0))


def _names_a_file_elsewhere(backup: Path) -> None:
    _edit(backup, lambda found: found["files"][-1].update(path="kernel/../../.ssh/authorized_keys"))


def _is_no_json(backup: Path) -> None:
    (backup / "manifest.json").write_text("{")


def _edit(backup: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    found = json.loads((backup / "manifest.json").read_text())
    change(found)
    (backup / "manifest.json").write_text(json.dumps(found))


@pytest.mark.parametrize(
    "harm", [_is_gone, _is_changed, _is_a_link, _lacks_a_database, _names_a_file_elsewhere, _is_no_json]
)
def test_a_backup_that_is_not_whole_changes_nothing(data: DataDir, backup: Path, harm: Callable[[Path], None]) -> None:
    harm(backup)
    with pytest.raises(Invalid):
        put_back(data, backup)
    assert_as_before(data)
    preflight.check_restore(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: next(f for f in found["files"] if f["path"] == "kernel/journal.db").update(schema=99),
        lambda found: found.update(format_version=2),
    ],
)
def test_one_of_a_newer_program_is_refused(data: DataDir, backup: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    _edit(backup, change)
    with pytest.raises(Conflict, match=r"newer|version 99"):
        put_back(data, backup)
    assert_as_before(data)


def test_a_folder_that_is_no_backup_is_named(data: DataDir, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        put_back(data, tmp_path / "nowhere")


def test_a_disk_without_room_changes_nothing(data: DataDir, backup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(data.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(Unavailable, match="no room"):
        put_back(data, backup)
    assert_as_before(data)


class Killer:
    """Runs restores that are killed before their so-manieth change of the disk."""

    def __init__(self, data: DataDir, backup: Path) -> None:
        command = [sys.executable, "-c", KILLER, str(data.root), str(backup)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate(timeout=30)

    def was_killed_at(self, step: int) -> bool:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (0, 9), code
        return code == 9


@pytest.mark.chaos
def test_killed_anywhere_it_is_finished_by_the_next_one_or_nothing_was_changed(
    data: DataDir, backup: Path, tmp_path: Path
) -> None:
    pristine = tmp_path / "pristine"
    shutil.copytree(data.root, pristine, symlinks=True)
    found = {"unchanged": 0, "interrupted": 0, "done": 0}
    with Killer(data, backup) as killer:
        step, was_killed = 0, True
        while was_killed:
            shutil.rmtree(data.root)
            shutil.copytree(pristine, data.root, symlinks=True)
            was_killed = killer.was_killed_at(step)
            found[_finished(data, backup)] += 1
            assert_restored(data)
            # Every step where it matters, each fifth of the others.
            step += 1 if found["interrupted"] else 3
    assert found["unchanged"] > 3 and found["interrupted"] > 20 and found["done"] > 1, found


def _finished(data: DataDir, backup: Path) -> str:
    """Restore again after a kill, and return what the kill had left."""
    if restoring.unfinished(data) is not None:
        with pytest.raises(Conflict, match="interrupted"):
            preflight.lock(data)
        plan = put_back(data, backup / "which is not looked at")
        for name in DATABASES:
            assert notes_of(data.root / plan.aside / name)[-1] == f"{name} three"
        return "interrupted"
    if (data.root / "provider/adapters/mine.lua").read_text() == "-- changed":
        assert_as_before(data)
        put_back(data, backup)
        return "unchanged"
    put_back(data, backup)
    return "done"


def test_one_that_was_interrupted_keeps_the_system_from_being_started(
    data: DataDir, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = preflight.restore_plan(data)
    plan.parent.mkdir()
    plan.write_text("{}")
    assert up(Options(data.root, 0)) == 3
    assert "homeagent restore" in capsys.readouterr().err
    plan.unlink()
    os.close(preflight.lock(data))


def test_a_terminal_is_needed_or_the_word_yes(homeagent: Command, data: DataDir, backup: Path) -> None:
    ended = homeagent("restore", str(backup))
    assert ended.exit_code == 3 and "--yes" in ended.stderr
    assert_as_before(data)
    ended = homeagent("restore", str(backup), "--yes")
    assert ended.exit_code == 0 and "replaced/" in ended.stderr
    assert_restored(data)


def test_the_command_goes_on_with_one_that_was_interrupted(
    homeagent: Command, data: DataDir, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error", "memory.db")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", fail)
        with pytest.raises(HomeAgentError):
            put_back(data, backup)
    ended = homeagent("restore", str(backup), "--json")
    assert ended.exit_code == 0 and "interrupted" in ended.stderr
    assert ended.json["backup"] == str(backup)
    assert_restored(data)
