"""What a confined process can still do; each test confines a child, since it cannot be undone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk import confine as module
from homeagent_sdk.confine import Confinement, confine, landlock_abi, standard_read_only

ABI = landlock_abi()

PRELUDE = """
import errno, json, os, signal, socket, subprocess, sys, threading
from pathlib import Path
from homeagent_sdk.confine import confine, standard_read_only

def outcome(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

data = Path(sys.argv[1])
def lock(tcp=False):
    return confine([data / "memory"], [*standard_read_only(), data / "keys" / "memory.key"], tcp=tcp)
"""


def in_a_child(data: Path, script: str, *arguments: str) -> Any:
    """Run a script in a child of its own and return what it printed, read as JSON."""
    command = [sys.executable, "-c", PRELUDE + script, str(data), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expected(outcome: str, since_abi: int = 1) -> str:
    """Return what must happen on this system: ``outcome`` where its Landlock can do that, else ``ok``."""
    return outcome if since_abi <= ABI else "ok"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for folder in ("memory", "provider", "keys"):
        (tmp_path / folder).mkdir()
    (tmp_path / "provider" / "usage.db").write_text("secret")
    (tmp_path / "keys" / "memory.key").write_text("mine")
    (tmp_path / "keys" / "provider.key").write_text("not mine")
    return tmp_path


def test_the_own_folder_works_and_the_others_do_not(data: Path) -> None:
    script = """
lock()
print(json.dumps({
    "write": outcome(lambda: (data / "memory" / "a").write_text("x")),
    "rename": outcome(lambda: (data / "memory" / "a").replace(data / "memory" / "b")),
    "delete": outcome(lambda: (data / "memory" / "b").unlink()),
    "own key": outcome(lambda: (data / "keys" / "memory.key").read_text()),
    "change own key": outcome(lambda: (data / "keys" / "memory.key").write_text("x")),
    "other key": outcome(lambda: (data / "keys" / "provider.key").read_text()),
    "other data": outcome(lambda: (data / "provider" / "usage.db").read_text()),
    "list other": outcome(lambda: os.listdir(data / "provider")),
    "new folder": outcome(lambda: (data / "new").mkdir()),
    "null": outcome(lambda: open(os.devnull, "w").write("x")),
}))
"""
    denied = expected("EACCES")
    assert in_a_child(data, script) == {
        "write": "ok",
        "rename": "ok",
        "delete": "ok",
        "own key": "ok",
        "change own key": denied,
        "other key": denied,
        "other data": denied,
        "list other": denied,
        "new folder": denied,
        "null": "ok",
    }


def test_tcp_is_refused_unless_it_was_asked_for(data: Path) -> None:
    script = """
lock(tcp=sys.argv[3] == "tcp")
print(json.dumps({
    "connect": outcome(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 5).close()),
    "bind": outcome(lambda: socket.socket().bind(("127.0.0.1", 0))),
}))
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        denied = expected("EACCES", 4)
        assert in_a_child(data, script, port, "none") == {"connect": denied, "bind": denied}
        assert in_a_child(data, script, port, "tcp") == {"connect": "ok", "bind": "ok"}


def test_processes_outside_cannot_be_signalled_but_children_can(data: Path) -> None:
    script = """
lock()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
answer = {
    "parent": outcome(lambda: os.kill(os.getppid(), 0)),
    "child": outcome(lambda: os.kill(child.pid, signal.SIGKILL)),
}
child.wait()
child.stdin.close()
print(json.dumps(answer))
"""
    assert in_a_child(data, script) == {"parent": expected("EPERM", 6), "child": "ok"}


def test_children_and_later_threads_are_confined_too(data: Path) -> None:
    script = """
lock()
seen = []
thread = threading.Thread(target=lambda: seen.append(outcome(lambda: os.listdir(data))))
thread.start()
thread.join()
code = "import os, sys\\ntry: os.listdir(sys.argv[1])\\nexcept PermissionError: sys.exit(7)"
child = subprocess.run([sys.executable, "-c", code, str(data)])
print(json.dumps({"thread": seen[0], "child": child.returncode}))
"""
    assert in_a_child(data, script) == {"thread": expected("EACCES"), "child": 7 if ABI else 0}


def test_python_goes_on_working(data: Path) -> None:
    script = """
lock()
import sqlite3, ssl, zoneinfo, locale, apsw, encodings.idna, time
os.environ["TZ"] = "Asia/Shanghai"
time.tzset()
ssl.create_default_context()
os.urandom(1)
apsw.Connection(str(data / "memory" / "m.db")).execute("create table t (x)")
print(json.dumps(os.path.exists("/proc/self/stat")))
"""
    assert in_a_child(data, script) is True


def test_it_says_what_is_in_force(data: Path) -> None:
    told = in_a_child(data, "print(json.dumps(lock().to_dict()))")
    assert told["abi"] == ABI
    assert (told["files"], told["tcp"], told["scoped"]) == (ABI >= 1, ABI >= 4, ABI >= 6)
    assert bool(told["reason"]) == (ABI < 6)


def test_missing_paths_are_named(data: Path) -> None:
    script = "print(json.dumps(confine([data / 'absent'], standard_read_only(), tcp=True).to_dict()))"
    assert in_a_child(data, script)["missing"] == ([str(data / "absent")] if ABI else [])


def test_it_refuses_to_pretend_when_threads_run_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "landlock_abi", lambda: 7)
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        confinement = confine([], [], tcp=True)
    finally:
        release.set()
        thread.join()
    assert not confinement.files
    assert "threads run already" in confinement.reason


def test_a_system_without_landlock_is_reported_and_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_syscall", lambda *_: -1)
    assert confine([], [], tcp=False) == Confinement(
        0, False, False, False, reason="this system has no Landlock (Linux 5.13 or newer needed)"
    )


def test_what_an_older_landlock_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "landlock_abi", lambda: 3)
    monkeypatch.setattr(module, "_enforce", lambda *_, **__: ())
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    confinement = confine([], [], tcp=False)
    assert (confinement.files, confinement.tcp, confinement.scoped) == (True, False, False)
    assert confinement.reason == "signals need Landlock 6 and TCP needs Landlock 4, this system has 3"


def test_a_refusal_of_the_system_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> tuple[str, ...]:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(module, "landlock_abi", lambda: 7)
    monkeypatch.setattr(module, "_enforce", refuse)
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    assert confine([], [], tcp=False).reason == "Landlock refused: Operation not permitted"


def test_the_standard_folders_hold_the_code_but_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = standard_read_only("memory_service")
    assert tmp_path not in paths
    assert Path(module.__file__).parent in paths
    assert any(path.name == "memory_service" for path in paths)
