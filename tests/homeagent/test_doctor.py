from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from homeagent import doctor
from homeagent.doctor import data as data_checks
from homeagent.doctor import machine
from homeagent.launcher.key_files import create_key_files
from homeagent_sdk import errors
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import SOURCE, STATUS, Command, FakeSystem


@pytest.fixture(autouse=True)
def healthy(data: DataDir, system: FakeSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    create_key_files(data.keys)
    monkeypatch.setattr(machine, "landlock_abi", lambda: 4)
    monkeypatch.setattr(os, "geteuid", lambda: data.root.stat().st_uid or 1000)
    monkeypatch.setattr(data_checks.os, "geteuid", lambda: data.root.stat().st_uid)


def examined(homeagent: Command) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in homeagent("doctor", "--json").json}


def test_a_healthy_system_passes_every_check(homeagent: Command) -> None:
    ended = homeagent("doctor")
    assert ended.exit_code == 0
    assert "0 failed" in ended.stdout
    names = examined(homeagent)
    for name in ("python", "user", "landlock", "clock", "data_dir", "disk", "keys", "version", "service kernel"):
        assert names[name]["state"] in ("ok", "warn"), names[name]
    assert names["plugin webui"]["state"] == names["source deepseek"]["state"] == "ok"


def test_every_trouble_comes_with_what_to_do(homeagent: Command, system: FakeSystem, data: DataDir) -> None:
    plugins = [{"name": "webui", "state": "stopped", "detail": "crashed"}]
    system.answer("kernel.status", {**STATUS, "plugins": plugins, "version": "0.0.9"})
    bad = {**SOURCE, "state": "bad_key", "reason": "401"}
    system.answer("provider.sources", {"sources": [bad, {**SOURCE, "name": "ollama", "state": "cooling"}]})
    data.key_file("memory").chmod(0o644)
    data.key_file("host").unlink()
    (data.kernel / "journal.db").write_bytes(b"not a database" * 100)
    ended = homeagent("doctor")
    assert ended.exit_code == 1
    checks = homeagent("doctor", "--json").json
    troubles = {check["name"]: check for check in checks if check["state"] != "ok"}
    assert all(check["todo"] for check in troubles.values()), troubles
    for name in ("plugin webui", "source deepseek", "source ollama", "keys", "version", "database kernel/journal.db"):
        assert name in troubles
    assert "homeagent plugin restart webui" in troubles["plugin webui"]["todo"]
    assert troubles["source deepseek"]["state"] == "fail" and troubles["source ollama"]["state"] == "warn"


def test_that_nothing_runs_is_a_warning(homeagent: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from homeagent import client

    monkeypatch.setattr(client, "is_running", lambda _: False)
    assert examined(homeagent)["running"]["state"] == "warn"
    assert homeagent("doctor").exit_code == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [(errors.Denied("this is not the owner", hint="be the owner"), "not the owner"), (errors.Internal("x"), "x")],
)
def test_a_kernel_that_refuses_is_a_failure(
    homeagent: Command, system: FakeSystem, error: errors.HomeAgentError, words: str
) -> None:
    system.answer("kernel.status", error)
    check = examined(homeagent)["running"]
    assert check["state"] == "fail" and words in check["message"]


def test_a_provider_service_that_does_not_answer_is_a_failure(homeagent: Command, system: FakeSystem) -> None:
    system.answer("provider.sources", errors.Unavailable("provider is restarting"))
    assert examined(homeagent)["sources"]["state"] == "fail"


@pytest.mark.parametrize(("sources", "name"), [([], "sources"), ([{**SOURCE, "embedded": True}], "source deepseek")])
def test_having_no_real_model_is_a_warning(
    homeagent: Command, system: FakeSystem, sources: list[Any], name: str
) -> None:
    system.answer("provider.sources", {"sources": sources})
    check = examined(homeagent)[name]
    assert check["state"] == "warn" and "homeagent source add" in check["todo"]


def test_a_directory_that_was_never_made_is_no_failure(homeagent: Command, tmp_path: Path) -> None:
    ended = homeagent("doctor", "--data-dir", str(tmp_path / "nothing"), "--json")
    check = next(check for check in ended.json if check["name"] == "data_dir")
    assert check["state"] == "warn" and "homeagent up" in check["todo"]
    assert not (tmp_path / "nothing").exists(), "an examination leaves nothing behind"


def test_an_unusable_directory_is_a_failure(homeagent: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = homeagent("doctor", "--data-dir", str(tmp_path / "file"), "--json")
    assert next(check for check in ended.json if check["name"] == "data_dir")["state"] == "fail"


def test_an_open_directory_is_told(homeagent: Command, data: DataDir) -> None:
    data.root.chmod(0o755)
    assert "chmod 700" in examined(homeagent)["data_dir"]["todo"]


def test_a_foreign_directory_is_told(homeagent: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_checks.os, "geteuid", lambda: 4711)
    assert "as that user" in examined(homeagent)["data_dir"]["todo"]


def test_landlock_is_asked_of_the_running_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert 0 <= machine.landlock_abi() < 100


def test_root_and_a_system_without_landlock_are_warnings(homeagent: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "landlock_abi", lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    checks = examined(homeagent)
    assert checks["landlock"]["state"] == checks["user"]["state"] == "warn"


def test_a_clock_that_went_back_is_a_failure(data: DataDir) -> None:
    (data.log / "kernel.log").write_text("x")
    assert machine._clock(data, time.time()).state == doctor.OK
    assert machine._clock(data, time.time() - 3600).state == doctor.FAIL
    assert machine._clock(data, 1000.0).state == doctor.FAIL


def test_sockets_that_nobody_listens_on_are_told(homeagent: Command, data: DataDir) -> None:
    (data.run / "control.sock").touch()
    assert "control.sock" in examined(homeagent)["sockets"]["message"]


def test_a_sound_database_is_read_without_being_changed(data: DataDir) -> None:
    path = data.kernel / "config.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE setting (key TEXT PRIMARY KEY)")
    connection.close()
    before = path.stat().st_mtime_ns, sorted(os.listdir(data.kernel))
    assert data_checks.damage_of(path) == []
    assert (path.stat().st_mtime_ns, sorted(os.listdir(data.kernel))) == before


def test_damage_inside_a_database_is_found(data: DataDir) -> None:
    path = data.kernel / "config.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE setting (key TEXT PRIMARY KEY)")
        connection.executemany("INSERT INTO setting VALUES (?)", [(f"key {number:05}",) for number in range(5000)])
    connection.close()
    with path.open("r+b") as file:
        file.seek(20_000)
        file.write(b"\xff" * 8000)
    assert data_checks.damage_of(path)
