from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homeagent.launcher.launcher import STOP_ORDER
from homeagent.overview import SERVICES
from homeagent.processes import descendants_of, is_alive

PROGRAM = Path(__file__).with_name("launcher_program.py")
UP: dict[str, Any] = {
    "services": [{"name": name, "state": "running", "detail": ""} for name in ("memory", "provider", "host")],
    "plugins": [{"name": "webui", "state": "running", "detail": ""}],
}


def eventually(what: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """Return what ``what`` returns, as soon as it is true; the limit is only for a test that fails."""
    end = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return value


class Running:
    """A launcher with fake services, as a process."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.journal = folder / "journal"
        self.errors = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self, *how: str, status: dict[str, Any] | None = UP) -> None:
        self.data.mkdir(exist_ok=True)
        if status is not None:
            (self.data / "status.json").write_text(json.dumps(status))
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.data), str(self.journal), *how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def noted(self, what: str) -> list[tuple[str, int, float]]:
        """Return (service, process id, time) for each note of a kind in the services' journal, in order."""
        lines = [line.split() for line in self.journal.read_text().splitlines()] if self.journal.exists() else []
        return [(name, int(pid), float(moment)) for kind, name, pid, moment in lines if kind == what]

    def wait_until_started(self) -> dict[str, int]:
        eventually(lambda: len({name for name, _, _ in self.noted("started")}) == len(SERVICES))
        return {name: pid for name, pid, _ in self.noted("started")}

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "run" / "launcher.json").read_text())
        return found

    def end(self, limit_s: float = 10.0) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(limit_s)
        self._reader.join()
        return code

    def clean_up(self) -> None:
        if self._process is None:
            return
        left = descendants_of({self.process.pid})
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in left:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    launcher = Running(tmp_path)
    yield launcher
    launcher.clean_up()


def test_stdout_has_the_one_line_ready_and_nothing_else(running: Running) -> None:
    running.start()
    assert running.wait_until_ready() == "ready http://127.0.0.1:8080\n"
    running.process.terminate()
    assert running.process.stdout is not None
    assert running.process.stdout.read() == ""
    assert running.end() == 0


def test_the_first_start_shows_a_key_once_and_says_that_the_model_is_tiny(running: Running) -> None:
    for keys in (1, 0):
        running.start()
        running.wait_until_ready()
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 0
        assert running.errors.count("ha-key-of-owner") == keys
        assert "homeagent key new" in running.errors or not keys
        assert "tiny" in running.errors and "Ollama" in running.errors
        running.clean_up()
        running.errors = ""


def test_the_launcher_goes_on_when_nobody_reads_what_it_says(running: Running) -> None:
    running.start()
    assert running.process.stdout is not None and running.process.stderr is not None
    running.process.stdout.close()
    first = running.wait_until_started()["memory_service"]
    eventually(lambda: running.record()["address"])
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(running.noted("started")) == len(SERVICES) + 1)
    assert is_alive(running.process.pid)


def test_what_happens_to_services_is_in_the_log_and_the_key_is_not(running: Running) -> None:
    running.start("provider_service=stubborn")
    running.wait_until_ready()
    running.wait_until_started()
    running.process.terminate()
    assert running.end() == 0
    log = (running.data / "log" / "launcher.log").read_text()
    assert "provider_service did not stop" in log
    assert "ha-key-of-owner" not in log


def test_ready_waits_until_every_service_and_plugin_is_up(running: Running) -> None:
    starting = {**UP, "plugins": [*UP["plugins"], {"name": "timer", "state": "starting", "detail": ""}]}
    running.start(status=starting)
    running.wait_until_started()
    lines: list[str] = []
    waiting = threading.Thread(target=lambda: lines.append(running.wait_until_ready()))
    waiting.start()
    waiting.join(0.3)
    assert not lines
    (running.data / "status.new").write_text(json.dumps(UP))
    (running.data / "status.new").replace(running.data / "status.json")
    waiting.join(10)
    assert lines == ["ready http://127.0.0.1:8080\n"]


def test_the_record_tells_who_runs(running: Running) -> None:
    running.start()
    running.wait_until_ready()
    pids = running.wait_until_started()
    record = running.record()
    assert record["pid"] == running.process.pid
    assert record["address"] == "http://127.0.0.1:8080"
    assert {name: row["pid"] for name, row in record["services"].items()} == pids
    assert all(row["restarts"] == 0 and row["started"] > 1e9 for row in record["services"].values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_services_in_order_and_leaves_nothing(running: Running, number: signal.Signals) -> None:
    running.start()
    pids = running.wait_until_started()
    (running.data / "run" / "control.sock").touch()
    running.process.send_signal(number)
    assert running.end() == 0
    assert [name for name, _, _ in running.noted("stopped")] == list(STOP_ORDER)
    assert not any(is_alive(pid) for pid in pids.values())
    assert os.listdir(running.data / "run") == ["launcher.lock"]


def test_a_service_that_dies_is_started_again_after_a_second(running: Running) -> None:
    running.start()
    running.wait_until_ready()
    first = running.wait_until_started()["memory_service"]
    died = time.monotonic()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(running.noted("started")) == len(SERVICES) + 1)
    name, pid, moment = running.noted("started")[-1]
    assert name == "memory_service" and pid != first
    assert 1.0 <= moment - died < 5.0, "one second, and however long a Python takes to start on a busy machine"
    service = eventually(lambda: running.record()["services"]["memory_service"])
    assert (service["pid"], service["restarts"]) == (pid, 1)
    assert "memory_service ended (signal 9) and starts again in 1 s" in running.errors
    assert is_alive(running.process.pid)


def test_a_service_that_fails_at_first_is_tried_again_and_its_words_are_shown(running: Running) -> None:
    running.start("kernel=fails-once")
    running.wait_until_started()
    assert "kernel ended (1) and starts again in 1 s OSError: the first start failed" in running.errors


def test_a_service_that_keeps_failing_is_tried_on_and_a_person_is_told_where_to_look(running: Running) -> None:
    running.start("memory_service=fails-always", status=None)
    eventually(
        lambda: "memory_service keeps failing: see why with `homeagent logs memory_service`" in running.errors, 30
    )
    assert is_alive(running.process.pid)


def test_a_service_that_refuses_its_configuration_ends_it_all(running: Running) -> None:
    running.start("kernel=refuses", status=None)
    assert running.end() == 3
    assert "error: no such setting: core.nonsense (see `homeagent config list`)" in running.errors
    assert not (running.data / "run" / "launcher.json").exists()
    assert not any(is_alive(pid) for _, pid, _ in running.noted("started"))


def test_a_service_that_does_not_stop_is_killed_and_named(running: Running) -> None:
    running.start("provider_service=stubborn")
    pids = running.wait_until_started()
    running.process.terminate()
    assert running.end() == 0
    assert "provider_service did not stop within 0.3 s and was killed" in running.errors
    assert [name for name, _, _ in running.noted("stopped")] == ["plugin_host", "memory_service", "kernel"]
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_second_signal_kills_at_once(running: Running) -> None:
    running.start(*(f"{name}=stubborn" for name in SERVICES))
    pids = running.wait_until_started()
    running.process.send_signal(signal.SIGINT)
    eventually(lambda: "stopping" in running.errors)
    running.process.send_signal(signal.SIGINT)
    assert running.end(2.0) == 1
    assert not any(is_alive(pid) for pid in pids.values())


def test_what_a_service_left_behind_is_stopped_too(running: Running) -> None:
    running.start("plugin_host=leaves-child")
    host = running.wait_until_started()["plugin_host"]
    (orphan,) = descendants_of({host})
    os.kill(host, signal.SIGKILL)
    eventually(lambda: not is_alive(host))
    assert is_alive(orphan)
    running.process.terminate()
    assert running.end() == 0
    assert not is_alive(orphan)


def test_killing_the_launcher_leaves_no_orphan_a_second_later(running: Running) -> None:
    running.start()
    pids = running.wait_until_started()
    running.process.kill()
    running.end()
    eventually(lambda: not any(is_alive(pid) for pid in pids.values()), 1.0)


def test_a_secret_reaches_its_service_alone_and_no_environment(running: Running) -> None:
    running.start("kernel=secret")
    pids = running.wait_until_started()
    assert [name for name, _, _ in running.noted("secrets=HOMEAGENT_API_KEY=ha-secret")] == ["kernel"]
    for pid in pids.values():
        for name in ("environ", "cmdline"):
            assert b"ha-secret" not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_the_services_have_one_thread_for_numbers_and_know_their_parent(running: Running) -> None:
    running.start()
    for pid in running.wait_until_started().values():
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {b"OPENBLAS_NUM_THREADS=1", b"OMP_NUM_THREADS=1"} <= set(environment)
        assert f"HOMEAGENT_PARENT_PID={running.process.pid}".encode() in environment
        assert os.getsid(pid) == pid, "Ctrl-C in the terminal must reach the launcher alone"
