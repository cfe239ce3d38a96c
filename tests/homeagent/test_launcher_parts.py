from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from homeagent.launcher import announcer, preflight
from homeagent.launcher import service as service_module
from homeagent.launcher.key_files import PEERS_WITH_KEY, create_key_files
from homeagent.launcher.launcher import service_specs
from homeagent.launcher.options import Options, parse
from homeagent.launcher.progress import Progress
from homeagent.launcher.record import is_locked, read_record
from homeagent.launcher.service import Service, ServiceSpec
from homeagent.overview import Overview
from homeagent_sdk.errors import Conflict, HomeAgentError, Invalid, NotFound, Unavailable
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import SOURCE, STATUS

# -- options ----------------------------------------------------------------------------------------------------------


def test_the_usual_options_need_no_command_line_library() -> None:
    options = parse(["--data-dir", "/d", "--port=9000", "--set", "a.b=c=d", "--set", "e="])
    assert options == Options(Path("/d"), 9000, ("a.b=c=d", "e="))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--port"], ["--port", "x"], ["--port", "70000"], ["--set", "a"], ["--data-dir", ""], ["x"]],
)
def test_whatever_is_not_plainly_right_is_left_to_the_full_parser(arguments: list[str]) -> None:
    assert parse(arguments) is None


def test_the_data_directory_comes_from_the_environment_else_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEAGENT_DATA_DIR", "/given")
    assert parse([]) == Options(Path("/given"))
    monkeypatch.delenv("HOMEAGENT_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert parse([]) == Options(Path("/xdg/homeagent"))


def test_up_loads_neither_the_command_line_library_nor_the_bus_before_it_needs_it() -> None:
    program = (
        "import sys, homeagent.command, homeagent.launcher.launcher\n"
        "print([name for name in ('typer', 'rich', 'zmq', 'structlog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"


# -- key files --------------------------------------------------------------------------------------------------------


def test_key_files_are_made_once_and_are_private(tmp_path: Path) -> None:
    assert create_key_files(tmp_path) == list(PEERS_WITH_KEY)
    first = {peer: (tmp_path / f"{peer}.key").read_text() for peer in PEERS_WITH_KEY}
    assert create_key_files(tmp_path) == []
    assert {peer: (tmp_path / f"{peer}.key").read_text() for peer in PEERS_WITH_KEY} == first
    for peer, key in first.items():
        assert len(key.strip()) == 64 and set(key.strip()) <= set("0123456789abcdef")
        assert stat.S_IMODE((tmp_path / f"{peer}.key").stat().st_mode) == 0o600
    assert len(set(first.values())) == len(PEERS_WITH_KEY)
    assert len(os.listdir(tmp_path)) == len(PEERS_WITH_KEY), "no draft is left"


def test_a_damaged_key_is_made_anew_and_an_open_one_is_closed(tmp_path: Path) -> None:
    create_key_files(tmp_path)
    (tmp_path / "memory.key").write_text("")
    (tmp_path / "host.key").chmod(0o644)
    assert create_key_files(tmp_path) == ["memory"]
    assert stat.S_IMODE((tmp_path / "host.key").stat().st_mode) == 0o600


# -- what is checked first --------------------------------------------------------------------------------------------


def test_an_old_python_is_refused() -> None:
    with pytest.raises(Invalid, match=r"3\.9\.2"):
        preflight.check_python((3, 9, 2))
    preflight.check_python()


@pytest.mark.parametrize(("free_mb", "refused", "warnings"), [(4, True, 0), (50, False, 1), (5000, False, 0)])
def test_a_full_disk_is_refused_and_a_nearly_full_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, refused: bool, warnings: int
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, free_mb * 1024 * 1024))
    told: list[str] = []
    if refused:
        with pytest.raises(Unavailable, match="no room left") as caught:
            preflight.check_disk(tmp_path, told.append)
        assert "nothing was started" in (caught.value.hint or "")
    else:
        preflight.check_disk(tmp_path, told.append)
    assert len(told) == warnings


def test_a_port_in_use_is_refused_with_another_way() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=str(port)) as caught:
            preflight.check_port("127.0.0.1", port)
    assert "--port" in (caught.value.hint or "")
    assert preflight.check_port("127.0.0.1", port) == port


def test_port_0_is_any_free_port() -> None:
    assert preflight.check_port("127.0.0.1", 0) > 1023


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Invalid, match=r"192\.0\.2\.1"):
        preflight.check_port("192.0.2.1", 0)


def test_only_one_launcher_has_a_data_directory(tmp_path: Path) -> None:
    data = DataDir(tmp_path).create()
    assert not is_locked(data)
    lock = preflight.lock(data)
    assert is_locked(data)
    with pytest.raises(Conflict, match="runs already") as caught:
        preflight.lock(data)
    assert "homeagent down" in (caught.value.hint or "")
    os.close(lock)
    assert not is_locked(data)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    data = DataDir(tmp_path).create()
    lock = preflight.lock(data)
    (data.run / "launcher.json").write_text(content)
    assert read_record(data) is None
    os.close(lock)


def up(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homeagent", "up", *arguments],
        env={**os.environ, "HOMEAGENT_LANG": "en", **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_up_says_what_is_wrong_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = up("--data-dir", str(tmp_path / "file"))
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "error: the data directory" in ended.stderr and "--data-dir" in ended.stderr


def test_up_refuses_a_port_in_use_and_leaves_no_half_made_system(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ended = up("--port", str(other.getsockname()[1]), HOMEAGENT_DATA_DIR=str(tmp_path / "d"))
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "in use" in ended.stderr and "nothing was started" in ended.stderr
    assert not (tmp_path / "d" / "run" / "launcher.json").exists()
    assert not list((tmp_path / "d").rglob("*.db"))


def test_up_refuses_a_second_launcher(tmp_path: Path) -> None:
    lock = preflight.lock(DataDir(tmp_path).create())
    ended = up("--data-dir", str(tmp_path))
    os.close(lock)
    assert ended.returncode == 3
    assert "runs already" in ended.stderr


# -- services ---------------------------------------------------------------------------------------------------------


def test_delays_grow_to_ten_seconds_and_begin_anew_after_a_minute_of_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    service = Service(ServiceSpec("x", ("true",), 1.0), tmp_path)
    service._started_monotonic = now
    assert [service.next_delay_s() for _ in range(12)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    now += service_module.HEALTHY_AFTER_S
    assert service.next_delay_s() == 1


def test_each_secret_goes_to_the_service_that_it_is_for(tmp_path: Path) -> None:
    secrets = {"HOMEAGENT_API_KEY": "ha-1", "HOMEAGENT_LLM_API_KEY": "sk-1"}
    specs = {spec.name: spec for spec in service_specs(DataDir(tmp_path), 9000, ["a=b"], secrets)}
    assert {name: dict(spec.secrets) for name, spec in specs.items()} == {
        "kernel": {"HOMEAGENT_API_KEY": "ha-1"},
        "provider_service": {"HOMEAGENT_LLM_API_KEY": "sk-1"},
        "memory_service": {},
        "plugin_host": {},
    }
    kernel = specs["kernel"].command
    assert kernel[1:6] == ("-P", "-m", "kernel", "--data-dir", str(tmp_path))
    assert kernel[6:] == ("--set", "plugin.webui.port=9000", "--set", "a=b")
    assert specs["memory_service"].command[4:] == ("--data-dir", str(tmp_path))
    assert "sk-1" not in str([spec.command for spec in specs.values()])


def test_the_time_to_stop_in_order_is_less_than_ten_seconds(tmp_path: Path) -> None:
    assert sum(spec.stop_within_s for spec in service_specs(DataDir(tmp_path), None, [], {})) < 9


def test_without_a_port_the_configuration_has_it(tmp_path: Path) -> None:
    assert "--set" not in service_specs(DataDir(tmp_path), None, [], {})[0].command


# -- readiness --------------------------------------------------------------------------------------------------------


class Answers:
    """Replies of the kernel, one for each call of a method; the last one again and again."""

    def __init__(self, **replies: list[Any]) -> None:
        self.replies = {name.replace("__", "."): list(values) for name, values in replies.items()}

    async def __call__(self, method: str, body: dict[str, Any]) -> Any:
        replies = self.replies[method]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, HomeAgentError):
            raise reply
        return reply


def with_plugins(*plugins: tuple[str, str, str]) -> dict[str, Any]:
    return {**STATUS, "plugins": [{"name": n, "state": s, "detail": d} for n, s, d in plugins]}


def screen() -> tuple[Progress, io.StringIO]:
    stream = io.StringIO()
    return Progress(stream), stream


async def test_it_is_up_when_every_service_and_plugin_runs_or_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "_FAST_S", 0.001)
    answers = Answers(
        kernel__status=[
            Unavailable("the kernel is starting"),
            {**STATUS, "services": []},
            with_plugins(),
            with_plugins(("webui", "starting", "")),
            with_plugins(("webui", "running", ""), ("timer", "disabled", "")),
        ]
    )
    overview = await announcer.wait_until_up(answers, screen()[0])
    assert overview.is_complete and set(overview.plugins) == {"webui", "timer"}


async def test_a_plugin_that_fails_is_named_once_and_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer, "_FAST_S", 0.001)
    progress, stream = screen()
    answers = Answers(kernel__status=[with_plugins(("webui", "running", ""), ("bad", "stopped", "it crashed"))])
    overview = await announcer.wait_until_up(answers, progress, patience_s=0.05)
    assert overview.serves and not overview.is_complete
    assert stream.getvalue().count("bad is not running (stopped): it crashed") == 1


async def test_without_the_web_interface_there_is_nothing_to_announce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "_FAST_S", 0.001)
    stopped, running = with_plugins(("webui", "stopped", "port in use")), with_plugins(("webui", "running", ""))
    answers = Answers(kernel__status=[stopped] * 20 + [running])
    overview = await announcer.wait_until_up(answers, screen()[0], patience_s=0.0)
    assert overview.is_complete and len(answers.replies["kernel.status"]) == 1


async def test_the_owner_gets_a_first_key_only_while_there_is_none() -> None:
    def principals(keys: int) -> dict[str, Any]:
        return {"principals": [{"principal": "mia", "keys": 1}, {"principal": "owner", "keys": keys}]}

    answers = Answers(kernel__principal_list=[principals(0), principals(1)], kernel__key_new=[{"key": "ha-1"}])
    assert await announcer.first_key(answers) == "ha-1"
    assert await announcer.first_key(answers) is None


@pytest.mark.parametrize(
    ("sources", "words"),
    [([], "No language model"), ([{**SOURCE, "embedded": True}], "tiny built-in model"), ([SOURCE], None)],
)
async def test_what_is_said_of_the_model(sources: list[Any], words: str | None) -> None:
    notice = await announcer.model_notice(Answers(provider__sources=[{"sources": sources}]))
    assert (notice is None) if words is None else (words in (notice or "") and "Ollama" in (notice or ""))


@pytest.mark.parametrize(
    ("address", "port", "url"),
    [
        ("127.0.0.1", 9000, "http://127.0.0.1:9000"),
        ("0.0.0.0", None, "http://127.0.0.1:8080"),
        ("::", None, "http://[::1]:8080"),
        ("192.168.1.2", None, "http://192.168.1.2:8080"),
        ("fd00::2", None, "http://[fd00::2]:8080"),
    ],
)
async def test_the_address_is_one_that_can_be_opened_here(address: str, port: int | None, url: str) -> None:
    async def call(_: str, body: dict[str, Any]) -> Any:
        return {"value": {"plugin.webui.addr": address, "plugin.webui.port": 8080}[body["key"]]}

    assert await announcer.web_address(call, port) == url


async def test_a_kernel_without_that_setting_is_told_as_it_is() -> None:
    with pytest.raises(NotFound):
        await announcer.web_address(Answers(kernel__config_get=[NotFound("no such setting")]), None)


def test_services_go_by_the_names_of_their_processes() -> None:
    overview = Overview.from_status({"services": [{"name": "memory", "state": "running"}]})
    assert {name: part.state for name, part in overview.services.items()} == {
        "kernel": "running",
        "memory_service": "running",
        "provider_service": "starting",
        "plugin_host": "starting",
    }


# -- progress ---------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_one_line_that_changes_in_place() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream)
    progress.waiting_for(["kernel", "webui"])
    progress.waiting_for(["webui"])
    progress.tell("a line that stays")
    progress.done()
    assert "kernel, webui" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[2Ka line that stays\n")


def test_elsewhere_only_a_long_wait_is_worth_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress, stream = screen()
    progress.waiting_for(["kernel"])
    assert stream.getvalue() == ""
    now = 11.0
    progress.waiting_for(["kernel"])
    progress.waiting_for(["kernel"])
    assert stream.getvalue().count("waiting for kernel (11 s)") == 1
