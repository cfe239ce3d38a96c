from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from homeagent_sdk import paths
from homeagent_sdk.errors import Invalid
from homeagent_sdk.paths import AREAS, DataDir, short_socket_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def long_root(tmp_path: Path) -> Path:
    return tmp_path / ("x" * 100) / "data"


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runtime directory with a short path, which the tests' own folders do not always have."""
    folder = Path(os.path.realpath(f"/tmp/ha-test-{os.getpid()}"))
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_every_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d").create()
    for area in AREAS:
        folder = getattr(data, area)
        assert folder.is_dir() and mode(folder) == 0o700, area
    assert mode(data.root) == 0o700
    assert data.key_file("memory") == data.keys / "memory.key"


def test_only_the_named_folders_are_made(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "d").create("log")
    assert sorted(os.listdir(data.root)) == ["log"]


def test_creating_twice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o750)
    data = DataDir(tmp_path / "d").create().create()
    assert mode(data.root) == 0o750, "the mode that its owner chose is left alone"


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DataDir("~/d").root == tmp_path / "d"


def test_sockets_fit_below_a_short_data_directory() -> None:
    assert DataDir("/srv/homeagent").run == Path("/srv/homeagent/run")


def test_a_long_data_directory_has_its_sockets_in_a_short_private_one(long_root: Path, runtime_dir: Path) -> None:
    data = DataDir(long_root).create()
    assert data.run.parent == runtime_dir / "homeagent"
    assert mode(data.run) == 0o700
    assert len(os.fsencode(data.run / "control.sock")) <= paths.SOCKET_PATH_LIMIT_BYTES
    assert os.readlink(long_root / "run") == str(data.run)


def test_all_processes_agree_whatever_their_environment(
    long_root: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DataDir(long_root).create().run
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert DataDir(long_root).run == first
    assert DataDir(long_root).create().run == first


def test_two_data_directories_never_share_their_sockets(tmp_path: Path, runtime_dir: Path) -> None:
    one, two = (DataDir(tmp_path / ("x" * 100) / name).create() for name in ("one", "two"))
    assert one.run != two.run


def test_a_runtime_directory_that_went_with_its_login_is_replaced(
    long_root: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_root.mkdir(parents=True)
    (long_root / "run").symlink_to("/nonexistent/homeagent/0123")
    data = DataDir(long_root).create()
    assert data.run.parent == runtime_dir / "homeagent" and data.run.is_dir()


def test_an_empty_run_folder_from_before_gives_way_to_the_link(long_root: Path, runtime_dir: Path) -> None:
    (long_root / "run").mkdir(parents=True)
    assert DataDir(long_root).create().run.parent == runtime_dir / "homeagent"


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Invalid) as caught:
            DataDir(root).create()
        assert str(tmp_path / "file") in caught.value.message
        assert "--data-dir" in (caught.value.hint or "")
        assert caught.value.field == "data_dir"


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # os.access is replaced since the tests may run as root, to whom everything is writable.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Invalid, match="cannot be read and written"):
        DataDir(tmp_path / "d").create()


def test_a_directory_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot be used"):
        DataDir("/proc/homeagent").create()


@pytest.mark.parametrize("kind", ["9p", "drvfs"])
def test_a_windows_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(paths, "_file_system_of", lambda _: kind)
    with pytest.raises(Invalid, match="Windows") as caught:
        DataDir(tmp_path / "d").create()
    assert "~/.local/share/homeagent" in (caught.value.hint or "")
    assert not (tmp_path / "d").exists()


def test_the_file_system_is_the_one_mounted_nearest() -> None:
    assert paths._file_system_of(Path("/proc/self")) == "proc"
    assert paths._file_system_of(Path("/")) not in ("", "proc")


def test_a_directory_of_somebody_else_is_never_used_for_sockets(
    long_root: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runtime_dir / "elsewhere").mkdir()
    (runtime_dir / "homeagent").symlink_to(runtime_dir / "elsewhere")
    with pytest.raises(Invalid, match="somebody else"):
        DataDir(long_root).create()
    (runtime_dir / "homeagent").unlink()


@pytest.mark.parametrize("length", [10, 150])
def test_a_socket_is_reached_below_any_path(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("y" * length)
    folder.mkdir()
    path = folder / "chat.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with short_socket_path(path) as name:
            server.bind(name)
        server.listen()
        with short_socket_path(path) as name:
            client.connect(name)
    assert path.is_socket()
