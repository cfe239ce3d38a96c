"""What services need that share neither a user nor a data directory, and get their secrets as files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homeagent_sdk import secrets
from homeagent_sdk.errors import Invalid
from homeagent_sdk.logging import configure, get_logger
from homeagent_sdk.paths import KEYS_DIR_VARIABLE, RUN_DIR_VARIABLE, DataDir

SECRET = "OUR_SECRET"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders for sockets and keys beside the data directory."""
    for name, variable in (("sockets", RUN_DIR_VARIABLE), ("keys", KEYS_DIR_VARIABLE)):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    return tmp_path


def test_sockets_and_keys_may_lie_outside_the_data_directory(outside: Path) -> None:
    data = DataDir(outside / "data").create()
    assert (data.run, data.key_file("memory")) == (outside / "sockets", outside / "keys" / "memory.key")
    assert not (data.root / "run").exists() and not (data.root / "keys").exists()


def test_an_outside_folder_is_not_made(outside: Path) -> None:
    (outside / "sockets").rmdir()
    with pytest.raises(Invalid, match="sockets"):
        DataDir(outside / "data").create("run")
    assert not (outside / "sockets").exists()


def test_outside_keys_need_only_be_readable(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append(mode) or True)
    DataDir(outside / "data").create("keys")
    assert not asked[-1] & os.W_OK
    DataDir(outside / "data").create("run")
    assert asked[-1] & os.W_OK


def test_a_secret_may_come_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv(f"{SECRET}_FILE", str(tmp_path / "secret"))
    assert secrets.take_from_environment([SECRET, "ANOTHER"]) == {SECRET: "from the file"}


def test_an_empty_secret_file_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("\n")
    monkeypatch.setenv(f"{SECRET}_FILE", str(tmp_path / "secret"))
    assert secrets.take_from_environment([SECRET]) == {}


def test_a_secret_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{SECRET}_FILE", str(tmp_path / "missing"))
    with pytest.raises(Invalid, match=f"missing in {SECRET}_FILE") as caught:
        secrets.take_from_environment([SECRET])
    assert caught.value.hint


def test_what_the_launcher_hands_over_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from the file")
    monkeypatch.setenv(f"{SECRET}_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv(secrets.DESCRIPTOR_VARIABLE, str(secrets.pass_to_child({SECRET: "handed over"})))
    assert secrets.take_from_environment([SECRET]) == {SECRET: "handed over"}


@pytest.mark.parametrize(("module", "variable"), [("kernel", "API_KEY"), ("provider_service", "LLM_API_KEY")])
def test_a_service_without_its_secret_file_says_what_to_do(tmp_path: Path, module: str, variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--data-dir", str(tmp_path / "data")],
        env={**os.environ, f"HOMEAGENT_{variable}_FILE": str(tmp_path / "missing")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 3
    assert f"HOMEAGENT_{variable}_FILE" in done.stderr and "Traceback" not in done.stderr


def test_a_log_can_be_shown_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for shown in ("", "1"):
        monkeypatch.setenv("HOMEAGENT_LOG_SHOW", shown)
        configure("kernel", tmp_path)
        get_logger("test").info("something happened")
        assert ("something happened" in capsys.readouterr().err) is bool(shown)


BEATS = """
import asyncio, os, sys
from homeagent_sdk import process
process.HEARTBEAT_S = 0.01
async def main(stopping):
    print(process.HEARTBEAT_ENVIRONMENT in os.environ, os.get_inheritable(int(sys.argv[1])), flush=True)
    await stopping.wait()
sys.exit(process.run(main))
"""


def test_the_time_of_the_heartbeat_file_follows_the_loop(tmp_path: Path) -> None:
    with (tmp_path / "alive").open("w") as file:
        os.utime(file.fileno(), (1, 1))
        descriptor = file.fileno()
        with subprocess.Popen(
            [sys.executable, "-c", BEATS, str(descriptor)],
            env={**os.environ, "HOMEAGENT_HEARTBEAT_FD": str(descriptor)},
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "False False\n", "its children have a life of their own"
            first = os.fstat(descriptor).st_mtime_ns
            deadline = time.monotonic() + 10
            while (later := os.fstat(descriptor).st_mtime_ns) == first and time.monotonic() < deadline:
                time.sleep(0.01)
            assert later > first > 10**12
            child.terminate()
            assert child.wait(10) == 0
