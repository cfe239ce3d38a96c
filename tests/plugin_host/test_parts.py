"""The parts of the plugin host that need no process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus import Credential
from homeagent_sdk.bus.abc import CallContext, Event
from homeagent_sdk.errors import Invalid, NotFound, Unavailable
from homeagent_sdk.testing import LocalBus
from plugin_host import orphans, plugin_log
from plugin_host.crash_policy import CrashPolicy, RestartLimit
from plugin_host.discovery import digest_of, find_plugins
from plugin_host.launch import Launch
from plugin_host.loader import load_plugin
from plugin_host.plugin_log import LineBudget, LogWriter, PipeReader, PluginLog
from plugin_host.publisher import Publisher
from plugin_host.reaper import Exit
from plugin_host.restart_settings import RestartSettings
from plugin_host.state_file import StateFile
from plugin_host.token_line import TokenLine
from tests.plugin_host.conftest import ROGUES

# -- when to restart --------------------------------------------------------------------------------------------------


def test_three_crashes_are_answered_by_restarts_and_the_fourth_is_not() -> None:
    policy = CrashPolicy(RestartLimit())
    assert [policy.crashed(now) for now in (0, 10, 20, 299)] == [1, 2, 3, None]


def test_a_plugin_that_was_stable_for_the_window_starts_from_nothing() -> None:
    policy = CrashPolicy(RestartLimit())
    assert [policy.crashed(now) for now in (0, 10, 20)] == [1, 2, 3]
    assert policy.crashed(320) == 1


def test_crashes_leave_the_window_one_by_one() -> None:
    policy = CrashPolicy(RestartLimit())
    assert [policy.crashed(now) for now in (0, 200, 250, 300, 301)] == [1, 2, 3, 3, None]


def test_a_reset_forgets_and_the_limit_is_read_live() -> None:
    limit = RestartLimit(restarts=1)
    policy = CrashPolicy(limit)
    policy.crashed(0)
    policy.reset()
    assert policy.crashed(1) == 1
    limit.restarts = 0
    assert policy.crashed(2) is None


async def test_the_settings_are_those_of_the_kernel_where_it_has_them() -> None:
    bus = LocalBus()
    kernel, host = bus.peer("kernel", "kernel"), bus.peer("host")
    values: dict[str, Any] = {"core.plugin.restart_limit": 5, "core.plugin.restart_window": "10m"}

    async def config_get(body: Any, call: CallContext) -> dict[str, Any]:
        if body["key"] not in values:
            raise NotFound("no such key")
        return {"value": values[body["key"]]}

    kernel.serve("kernel.config_get", config_get)
    limit = RestartLimit()
    settings = RestartSettings(host, limit)
    await settings.read()
    assert limit == RestartLimit(5, 600.0)
    values.clear()
    await settings.read()
    assert limit == RestartLimit(5, 600.0), "what cannot be read stays as it was"
    values.update({"core.plugin.restart_limit": "many", "core.plugin.restart_window": "soon"})
    await settings.read()
    assert limit == RestartLimit(5, 600.0), "what makes no sense stays as it was"
    assert settings.concerns(Event("config.changed", "e", 1, 0, {"keys": ["core.plugin.restart_limit"]}))
    assert not settings.concerns(Event("config.changed", "e", 1, 0, {"keys": ["core.agent.name"]}))
    assert settings.concerns(Event("ring.lost", "e", 1, 0, {"topic": "config.changed", "count": 3}))


# -- what there is ----------------------------------------------------------------------------------------------------


def plugin_folder(root: Path, folder: str, name: str | None = None, **more: Any) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    manifest = {"name": name or folder, "version": "1", "kind": "python", "entry": "main.py"}
    (path / "plugin.json").write_text(json.dumps({**manifest, "description": {"en": "x"}, **more}))
    (path / "main.py").write_text("from homeagent_sdk.plugin import Plugin\nplugin = Plugin()\n")
    return path


def test_of_two_plugins_with_one_name_the_bundled_one_is_taken(tmp_path: Path) -> None:
    plugin_folder(tmp_path / "b", "echo")
    plugin_folder(tmp_path / "x", "echo")
    plugin_folder(tmp_path / "x", "other", name="echo")
    plugin_folder(tmp_path / "x", "fine")
    (tmp_path / "x" / "state.json").write_text("{}")
    (tmp_path / "x" / ".hidden").mkdir()
    found = find_plugins(tmp_path / "b", tmp_path / "x")
    assert [(plugin.name, plugin.tier, bool(plugin.problem)) for plugin in found] == [
        ("echo", "builtin", False),
        ("echo@external", "external", True),
        ("fine", "external", False),
        ("other", "external", True),
    ]
    assert len({plugin.name for plugin in found}) == len(found), "names tell them apart"


def test_folders_that_are_not_there_hold_no_plugins(tmp_path: Path) -> None:
    assert find_plugins(tmp_path / "b", tmp_path / "x") == []


def test_the_digest_sees_names_and_contents_but_no_caches(tmp_path: Path) -> None:
    folder = plugin_folder(tmp_path, "p")
    before = digest_of(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "main.pyc").write_bytes(b"x")
    assert digest_of(folder) == before
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("1")
    with_file = digest_of(folder)
    (folder / "data" / "a.txt").rename(folder / "data" / "b.txt")
    assert len({before, with_file, digest_of(folder)}) == 3


def test_a_plugin_is_a_package_so_that_it_can_import_its_own_files(tmp_path: Path) -> None:
    folder = plugin_folder(tmp_path, "some-folder", name="packaged", entry="code/entry.py")
    (folder / "code").mkdir()
    (folder / "helper.py").write_text("NUMBER = 42\n")
    (folder / "__init__.py").write_text("LOADED = True\n")
    (folder / "code" / "entry.py").write_text(
        "from homeagent_sdk.plugin import Plugin\nfrom .. import LOADED\nfrom ..helper import NUMBER\n"
        "plugin = Plugin()\nplugin.input_channel(f'c{NUMBER}{LOADED}')\n"
    )
    found = find_plugins(tmp_path, tmp_path / "none")[0]
    assert found.manifest is not None
    assert list(load_plugin(folder, found.manifest).inputs) == ["c42True"]


def test_an_entry_without_a_plugin_is_refused() -> None:
    found = next(each for each in find_plugins(ROGUES, ROGUES / "none") if each.name == "has_no_plugin")
    assert found.manifest is not None
    with pytest.raises(Invalid, match="has no plugin"):
        load_plugin(found.folder, found.manifest)


# -- what is kept -----------------------------------------------------------------------------------------------------


async def test_disabled_plugins_and_generations_are_kept(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "state.json")
    await state.load()
    assert [state.next_generation("echo"), state.next_generation("echo"), state.next_generation("x")] == [1, 2, 1]
    await state.set_disabled("echo", True)
    again = StateFile(tmp_path / "state.json")
    await again.load()
    assert again.is_disabled("echo") and not again.is_disabled("x")
    assert again.next_generation("echo") == 3
    await asyncio.gather(*(again.save_if_changed() for _ in range(5)))
    third = StateFile(tmp_path / "state.json")
    await third.load()
    assert third.next_generation("echo") == 4
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize("text", ["{", "[]", '{"disabled": 3}', '{"generations": {"a": "b"}}'])
async def test_a_damaged_state_is_put_aside(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    state = StateFile(path)
    await state.load()
    assert state.next_generation("a") == 1
    assert (tmp_path / "state.damaged").read_text() == text


async def test_a_plugin_is_not_called_disabled_if_that_cannot_be_stored(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "missing" / "state.json")
    await state.load()
    with pytest.raises(Unavailable, match="cannot be written"):
        await state.set_disabled("echo", True)
    assert not state.is_disabled("echo")
    state.next_generation("echo")
    await state.save_if_changed()


# -- what plugins print -----------------------------------------------------------------------------------------------


def test_the_budget_lets_a_burst_pass_and_then_a_steady_rate() -> None:
    budget = LineBudget(0.0)
    assert sum(budget.allow(0.0) for _ in range(1500)) == 1000
    assert budget.held_back == 500
    assert sum(budget.allow(1.0) for _ in range(500)) == 200
    assert sum(budget.allow(2.0, 8192) for _ in range(500)) == 7, "long lines count as many"


def test_lines_become_json_and_secrets_are_masked(tmp_path: Path) -> None:
    log = PluginLog("p", tmp_path / "p.log")
    log.add(b"hello sk-12345678abcdef\n", "stdout")
    log.add(b'{"time": 1, "event": "structured"}', "stderr")
    log.add(b'{"time": 1, "event": "boom", "exception": "Traceback\\nValueError: no"}', "stderr")
    log.add(b"\xff\xfe{", "stderr")
    lines = log.take()
    assert json.loads(lines[0])["event"] == "hello ***" and json.loads(lines[0])["service"] == "plugin-p"
    assert lines[1] == '{"time": 1, "event": "structured"}'
    assert log.errors() == ["structured", "boom ValueError: no", "\ufffd\ufffd{"]
    log.write(lines)
    assert len((tmp_path / "p.log").read_text().splitlines()) == 4


def test_a_full_log_is_turned_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_log, "LOG_FILE_BYTES", 100)
    log = PluginLog("p", tmp_path / "p.log")
    for number in range(6):
        log.write([str(number) * 120])
    assert sorted(os.listdir(tmp_path)) == ["p.log", "p.log.1", "p.log.2"]
    assert (tmp_path / "p.log").read_text()[0] == "5"


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    PluginLog("p", tmp_path / "missing" / "p.log").write(["line"])


async def test_a_pipe_is_read_line_by_line_and_never_without_bound(tmp_path: Path) -> None:
    log = PluginLog("p", tmp_path / "p.log")
    read_end, write_end = os.pipe()
    reader = PipeReader(read_end, log, "stdout")
    os.write(write_end, b"one\ntw")
    os.write(write_end, b"o\n" + b"x" * 20_000 + b"\nlast")
    reader.close()
    os.close(write_end)
    events = [json.loads(line)["event"] for line in log.take()]
    assert events[:2] == ["one", "two"] and events[-1] == "last"
    assert max(map(len, events)) <= 8 * 1024


async def test_logs_are_written_while_the_host_runs(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.start()
    writer.log_of("p").add(b"early", "stdout")
    async with asyncio.timeout(5):
        while not (tmp_path / "plugin-p.log").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    writer.log_of("p").add(b"late", "stdout")
    await writer.stop()
    assert "late" in await asyncio.to_thread((tmp_path / "plugin-p.log").read_text)


# -- the line between plugin and supervisor ---------------------------------------------------------------------------


async def test_the_line_gives_tokens_and_takes_reports() -> None:
    ours, theirs = socket.socketpair()
    tokens = iter(["first", "second"])

    async def mint() -> str:
        return next(tokens)

    line = TokenLine(ours, "echo", 4, mint)
    channel = Credential.from_token_channel(theirs.detach())
    first, second = await channel.secret(), await channel.secret()
    assert (first.name, first.secret, first.generation, second.secret) == ("echo", "first", 4, "second")
    await channel.report("running")
    assert (await asyncio.wait_for(line.ready, 5)).state == "running"
    await line.close()
    await asyncio.wait_for(channel.closed.wait(), 5)
    await channel.close()


async def test_a_kernel_that_is_away_is_told_to_the_plugin_and_its_clock_stands_meanwhile() -> None:
    ours, theirs = socket.socketpair()
    asked, answer = asyncio.Event(), asyncio.Event()

    async def mint() -> str:
        asked.set()
        await answer.wait()
        raise Unavailable("the kernel did not come back in time")

    line = TokenLine(ours, "echo", 1, mint)
    channel = Credential.from_token_channel(theirs.detach())
    secret = asyncio.create_task(channel.secret())
    await asyncio.wait_for(asked.wait(), 5)
    assert line.waits_for_kernel
    answer.set()
    with pytest.raises(Unavailable, match="did not come back"):
        await secret
    assert not line.waits_for_kernel
    await channel.close()
    await line.close()


async def test_the_last_words_of_a_process_are_heard_after_its_end() -> None:
    ours, theirs = socket.socketpair()

    async def mint() -> str:
        return "t"

    line = TokenLine(ours, "echo", 1, mint)
    theirs.sendall(b'{"state": "failed", "reason": "the port is in use"}\n')
    theirs.close()
    await line.close()
    assert line.last is not None and line.last.reason == "the port is in use"


async def test_nonsense_on_the_line_is_logged_and_survived() -> None:
    ours, theirs = socket.socketpair()

    async def mint() -> str:
        return "t"

    line = TokenLine(ours, "echo", 1, mint)
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, b'nonsense\n[1]\n{"state": \n{"state": "failed", "reason": "r"}\n')
    assert (await asyncio.wait_for(line.ready, 5)).reason == "r"
    await loop.sock_sendall(theirs, b"x" * 20_000)
    assert await asyncio.wait_for(loop.sock_recv(theirs, 10), 5) == b"", "a line without end is hung up on"
    theirs.close()
    await line.close()


# -- the rest ---------------------------------------------------------------------------------------------------------


async def test_events_wait_for_the_bus_in_order_and_within_a_bound() -> None:
    bus = LocalBus()
    publisher = Publisher(bus.peer("host"))
    for number in range(300):
        publisher.publish("plugin.started", {"number": number})
    publisher.start()
    await publisher.stop()
    assert [event.payload["number"] for event in bus.events] == list(range(44, 300))
    assert publisher.dropped == 44


def test_a_launch_survives_the_way_to_the_zygote() -> None:
    launch = Launch("echo", '/päth/with "quotes"\n', "/d", "builtin", 3, 99)
    assert Launch.decode(launch.encode()) == launch
    with pytest.raises(Invalid):
        Launch("echo", "/" + "x" * 40_000, "/d", "builtin", 3, 99).encode()


def test_an_exit_is_described_in_words() -> None:
    assert Exit(code=7).describe() == "ended with exit code 7"
    assert Exit(signal=9).describe() == "killed by SIGKILL"
    assert "200" in Exit(signal=200).describe()


def test_a_process_is_seen_with_its_parent_and_session() -> None:
    me = orphans.look_at(os.getpid())
    assert me is not None and me.parent == os.getppid() and me.session == os.getsid(0) and not me.is_dead
    assert orphans.look_at(2**22 + 1) is None
    assert orphans.environment_of(2**22 + 1) == {}


@pytest.mark.parametrize("module", ["plugin_host.__main__", "plugin_host.zygote"])
def test_supervisor_and_zygote_stay_lean(module: str) -> None:
    script = f"""
import importlib, sys
module = importlib.import_module({module!r})
for name in getattr(module, "PRELOADED", ()):
    importlib.import_module(name)
print([name for name in ("rich", "aiohttp", "numpy", "jieba", "apsw", "lupa") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
