from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import homeagent as package
from homeagent.command import build_app
from homeagent.exit_codes import NotRunning, exit_code_of
from homeagent.launcher import preflight
from homeagent.launcher.record import record_path
from homeagent.overview import SERVICES
from homeagent_sdk import errors
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import SOURCE, STATUS, Command, FakeSystem

ROOT = Path(__file__).parents[2]
NEEDS_A_RUNNING_SYSTEM = (
    ["status"],
    ["ps"],
    ["down"],
    ["config", "list"],
    ["source", "list"],
    ["plugin", "list"],
    ["persona", "show"],
    ["principal", "list"],
    ["key", "new"],
    ["chat", "-m", "hi"],
)


def command_names() -> list[str]:
    app = build_app()
    single = [command.name or "" for command in app.registered_commands]
    grouped = [
        f"{group.name} {command.name}"
        for group in app.registered_groups
        if group.typer_instance is not None
        for command in group.typer_instance.registered_commands
    ]
    return single + grouped


@pytest.mark.parametrize("arguments", NEEDS_A_RUNNING_SYSTEM, ids=" ".join)
def test_when_nothing_runs_the_exit_code_is_4_and_says_how_to_start(homeagent: Command, arguments: list[str]) -> None:
    ended = homeagent(*arguments)
    assert ended.exit_code == 4
    assert ended.stdout == ""
    assert "`homeagent up`" in ended.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotRunning("x"), 4),
        (errors.Denied("x"), 5),
        (errors.Invalid("x"), 3),
        (errors.Conflict("x"), 3),
        (errors.NotFound("x"), 1),
        (errors.Unavailable("x"), 1),
        (errors.Internal("x"), 1),
        (OSError("x"), 1),
    ],
)
def test_exit_codes_tell_kinds_of_errors_apart(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_wrong_usage_is_2(homeagent: Command) -> None:
    assert homeagent("ps", "--nonsense").exit_code == 2
    assert homeagent("up", "--port", "70000").exit_code == 2
    assert homeagent("up", "--set", "no-value").exit_code == 2


def test_every_command_and_option_is_documented() -> None:
    documented = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name in command_names():
        assert f"`homeagent {name}" in documented, name
    app = typer.main.get_command(build_app())
    for option in sorted(_options(app)):
        assert f"`{option}" in documented, option


def _options(command: Any) -> set[str]:
    found = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    for child in getattr(command, "commands", {}).values():
        found |= _options(child)
    return found - {"--help", "--install-completion", "--show-completion"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_command_has_a_help_text_in_both_languages(language: str) -> None:
    program = (
        "from homeagent.command import build_app; from typer.main import get_command\n"
        "def walk(c):\n"
        "    assert c.help and not c.help.startswith('command.'), c.name\n"
        "    for p in c.params:\n"
        "        h = getattr(p, 'help', '') or ''\n"
        "        assert h and not h.startswith('command.'), (c.name, p.name)\n"
        "    for child in getattr(c, 'commands', {}).values(): walk(child)\n"
        "walk(get_command(build_app()))\n"
    )
    environment = {**os.environ, "HOMEAGENT_LANG": language}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_help_speaks_chinese() -> None:
    environment = {**os.environ, "HOMEAGENT_LANG": "zh", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "homeagent", "--help"], env=environment, capture_output=True, text=True, timeout=30
    )
    assert "查看系统是否一切正常" in done.stdout and "命令" in done.stdout


def test_version_is_that_of_the_packages(homeagent: Command) -> None:
    assert homeagent("version", "--json").json["homeagent"] == package.__version__
    assert package.__version__ in homeagent("version").stdout


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_shows_services_plugins_and_sources(homeagent: Command, system: FakeSystem) -> None:
    ended = homeagent("status")
    assert ended.exit_code == 0
    for name in ("kernel", "memory_service", "provider_service", "plugin_host", "webui", "cli", "deepseek"):
        assert name in ended.stdout
    assert "1 running, 2 waiting, 3 finished" in ended.stdout
    assert homeagent("status", "--json").json["ready"] is True


def test_status_fails_when_something_is_not_running(homeagent: Command, system: FakeSystem) -> None:
    plugins = [{"name": "webui", "state": "stopped", "detail": "crashed four times"}]
    system.answer("kernel.status", {**STATUS, "plugins": plugins})
    ended = homeagent("status")
    assert ended.exit_code == 1
    assert "crashed four times" in ended.stdout
    assert homeagent("status", "--json").json["ready"] is False


def test_status_says_that_the_embedded_model_is_tiny(homeagent: Command, system: FakeSystem) -> None:
    system.answer("provider.sources", {"sources": [{**SOURCE, "embedded": True}]})
    assert "tiny built-in model" in homeagent("status").stdout


def test_status_works_without_the_provider_service(homeagent: Command, system: FakeSystem) -> None:
    system.answer("provider.sources", errors.Unavailable("provider is restarting"))
    assert homeagent("status").exit_code == 0


# -- ps ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launcher(data: DataDir) -> Any:
    """A launcher that is this very test: it holds the lock, and its services are this process."""
    lock = preflight.lock(data)
    row = {"pid": os.getpid(), "restarts": 2, "started": 1.0}
    names = ("kernel", "memory_service", "provider_service", "plugin_host")
    record = {"pid": os.getpid(), "port": 8080, "address": "http://127.0.0.1:8080"}
    record_path(data).write_text(json.dumps({**record, "services": dict.fromkeys(names, row)}))
    yield record
    os.close(lock)


@pytest.mark.usefixtures("launcher")
def test_ps_has_exactly_the_agreed_fields(homeagent: Command, system: FakeSystem) -> None:
    plugin = {"name": "webui", "pid": os.getpid(), "state": "running", "restarts": 1}
    system.answer("host.plugins", {"plugins": [plugin], "zygote_pid": None})
    rows = {row["name"]: row for row in homeagent("ps", "--json").json}
    fields = {"name", "kind", "pid", "state", "restarts", "uptime_s", "rss_bytes", "pss_bytes"}
    assert all(set(row) == fields for row in rows.values())
    assert [rows[name]["kind"] for name in ("kernel", "webui", "launcher")] == ["service", "plugin", "launcher"]
    kernel = rows["kernel"]
    assert (kernel["pid"], kernel["state"], kernel["restarts"]) == (os.getpid(), "running", 2)
    assert kernel["rss_bytes"] >= kernel["pss_bytes"] > 1_000_000
    assert kernel["uptime_s"] > 0
    assert rows["webui"]["restarts"] == 1


@pytest.mark.usefixtures("launcher")
def test_ps_shows_workers_and_the_zygote_under_names_of_their_own(homeagent: Command, system: FakeSystem) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as one, subprocess.Popen(command, stdin=subprocess.PIPE):
        system.answer("host.plugins", {"plugins": [], "zygote_pid": one.pid})
        rows = homeagent("ps", "--json").json
        workers = {row["pid"]: row["name"] for row in rows if row["kind"] == "worker"}
        assert workers[one.pid] == "zygote"
        assert len([name for name in workers.values() if name.startswith("python")]) == 1


@pytest.mark.usefixtures("launcher")
def test_ps_still_shows_processes_while_the_kernel_does_not_answer(homeagent: Command, system: FakeSystem) -> None:
    system.answer("kernel.status", errors.Unavailable("the kernel is restarting"))
    rows = {row["name"]: row for row in homeagent("ps", "--json").json}
    assert rows["memory_service"]["pid"] == os.getpid()
    assert rows["memory_service"]["state"] == "starting"


@pytest.mark.usefixtures("launcher")
def test_ps_shows_a_service_between_two_starts(homeagent: Command, system: FakeSystem, data: DataDir) -> None:
    record = json.loads(record_path(data).read_text())
    record["services"]["memory_service"]["pid"] = None
    record_path(data).write_text(json.dumps(record))
    row = next(row for row in homeagent("ps", "--json").json if row["name"] == "memory_service")
    assert (row["pid"], row["state"], row["rss_bytes"]) == (None, "restarting", None)
    assert "restarting" in homeagent("ps").stdout


def test_ps_works_without_a_launcher(homeagent: Command, system: FakeSystem) -> None:
    peers = [
        {"name": name, "tier": "service", "pid": os.getpid(), "state": "running", "since": 1.0, "generation": 0}
        for name in ("kernel", "memory", "provider")
    ]
    system.answer("hub.peers", {"peers": peers})
    rows = {row["name"]: row for row in homeagent("ps", "--json").json}
    assert rows["memory_service"]["state"] == "running" and "launcher" not in rows
    assert (rows["plugin_host"]["pid"], rows["plugin_host"]["state"]) == (None, "stopped")


def test_ps_takes_no_process_here_for_one_in_another_container(homeagent: Command, system: FakeSystem) -> None:
    peers = [{"name": name, "pid": os.getpid(), "since": 1.0} for name in ("kernel", "memory", "provider", "host")]
    system.answer("hub.peers", {"peers": peers})
    system.answer("host.plugins", {"plugins": [{"name": "clock", "state": "running", "pid": os.getpid()}]})
    rows = homeagent("ps", "--json").json
    assert {row["name"] for row in rows} == {*SERVICES, "clock"}, "no workers of a process that is not theirs"
    assert all(row["state"] == "running" and row["rss_bytes"] is None and row["uptime_s"] is None for row in rows)


# -- plugins, principals, keys ----------------------------------------------------------------------------------------


def test_plugins_are_listed_with_what_they_do_or_why_they_do_not(homeagent: Command, system: FakeSystem) -> None:
    plugin = {"version": "0.1.0", "tier": "builtin", "restarts": 0, "description": {"en": "tells time", "zh": "报时"}}
    plugins = [
        {**plugin, "name": "clock", "state": "running"},
        {**plugin, "name": "bad", "state": "stopped", "reason": "crashed four times in five minutes"},
    ]
    system.answer("host.plugins", {"plugins": plugins})
    shown = homeagent("plugin", "list").stdout
    assert "tells time" in shown and "crashed four times in five minutes" in shown
    assert homeagent("plugin", "list", "--json").json == plugins


@pytest.mark.parametrize("verb", ["restart", "reload", "enable", "disable"])
def test_a_plugin_is_named_to_the_host(homeagent: Command, system: FakeSystem, verb: str) -> None:
    system.answer(f"host.{verb}", lambda body: {"plugins": [body["name"]]})
    ended = homeagent("plugin", verb, "timer")
    assert ended.exit_code == 0 and "timer" in ended.stderr
    assert system.called(f"host.{verb}") == [{"name": "timer"}]


def test_reload_without_a_name_means_all_that_changed(homeagent: Command, system: FakeSystem) -> None:
    system.answer("host.reload", {"plugins": []})
    assert "nothing had changed" in homeagent("plugin", "reload").stderr
    assert system.called("host.reload") == [{"name": None}]
    assert homeagent("plugin", "reload", "--json").json == []


def test_a_new_key_is_alone_on_stdout(homeagent: Command, system: FakeSystem) -> None:
    system.answer("kernel.key_new", {"key": "ha-new"})
    ended = homeagent("key", "new")
    assert ended.stdout == "ha-new\n"
    assert "this one time" in ended.stderr
    assert system.called("kernel.key_new") == [{"principal": "owner"}]
    assert homeagent("key", "new", "mia", "--json").json == {"principal": "mia", "key": "ha-new"}


def test_principals_are_added_listed_and_removed(homeagent: Command, system: FakeSystem) -> None:
    owner = {"principal": "owner", "name": "owner", "role": "owner", "created": 1_796_000_000.0, "keys": 1}
    system.answer("kernel.principal_add", lambda body: {"principal": "p1", "key": f"ha-{body['name']}"})
    system.answer("kernel.principal_list", {"principals": [owner]})
    system.answer("kernel.principal_remove", {})
    assert homeagent("principal", "add", "Mia").stdout == "ha-Mia\n"
    assert "2026-" in homeagent("principal", "list").stdout
    assert homeagent("principal", "list", "--json").json == [owner]
    assert homeagent("principal", "remove", "p1").exit_code == 0
    assert system.called("kernel.principal_remove") == [{"principal": "p1"}]


def test_what_the_kernel_denies_is_5(homeagent: Command, system: FakeSystem) -> None:
    system.answer("kernel.principal_remove", errors.Denied("the owner cannot be removed"))
    assert homeagent("principal", "remove", "owner").exit_code == 5


# -- output -----------------------------------------------------------------------------------------------------------


def test_a_table_in_a_pipe_is_not_cut_off_and_has_no_colours(homeagent: Command, system: FakeSystem) -> None:
    detail = "x" * 300
    system.answer("kernel.status", {**STATUS, "plugins": [{"name": "webui", "state": "failed", "detail": detail}]})
    shown = homeagent("status").stdout
    assert detail in shown
    assert not re.search(r"\x1b", shown)
