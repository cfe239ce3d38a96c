"""The real plugin host, as a process, on the real hub."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound, Unavailable
from plugin_host import orphans
from tests.plugin_host.conftest import Home


def read(path: str) -> str:
    return Path(path).read_bytes().decode(errors="replace")


def status_of(pid: int) -> dict[str, str]:
    lines = read(f"/proc/{pid}/status").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


async def test_a_plugin_runs_in_a_process_of_its_own(home: Home) -> None:
    home.add("echo")
    host = await home.start_host()
    entry = await home.until("echo", "running")
    assert (entry["tier"], entry["version"], entry["restarts"], entry["reason"]) == ("builtin", "0.1.0", 0, "")
    answer = await home.call_tool("echo", "echo", text="hi", times="2")
    assert answer == {"content": "hi hi", "is_error": False}
    child = orphans.look_at(entry["pid"])
    assert child is not None and child.parent == host.pid, "the supervisor is its parent, not the zygote"
    assert child.session == child.pid
    started = await home.event("plugin.started", "echo")
    assert (started["pid"], started["generation"]) == (entry["pid"], 1)


async def test_a_plugin_process_has_limits_and_no_descriptor_of_others(home: Home) -> None:
    home.add("echo", "crashes_in_tool")
    await home.start_host()
    pid = (await home.until("echo", "running"))["pid"]
    await home.until("crashes_in_tool", "running")
    limits = read(f"/proc/{pid}/limits")
    assert "Max core file size        0" in limits
    assert read(f"/proc/{pid}/oom_score_adj").strip() == "500"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    targets = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    assert sum(target.startswith("pipe:") for target in targets) == 2, "its stdout and stderr, nobody else's"
    assert status_of(pid)["Name"] == "echo"


async def test_the_zygote_has_one_thread_no_socket_of_zeromq_and_no_secret(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOMEAGENT_API_KEY", "ha-very-secret")
    monkeypatch.setenv("HOMEAGENT_LLM_API_KEY", "sk-very-secret")
    home.add("echo")
    await home.start_host()
    pid = (await home.until("echo", "running"))["pid"]
    zygote = (await home.operator.call("host.plugins"))["zygote_pid"]
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1
    sockets = [fd for fd in os.listdir(f"/proc/{zygote}/fd") if os.readlink(f"/proc/{zygote}/fd/{fd}")[:6] == "socket"]
    assert len(sockets) == 1, "the line to the supervisor"
    for process in (zygote, pid):
        assert "very-secret" not in read(f"/proc/{process}/environ")


async def test_a_crash_is_told_and_followed_by_a_restart(home: Home) -> None:
    home.add("crashes_in_tool", "echo")
    await home.start_host()
    first = await home.until("crashes_in_tool", "running")
    bystander = await home.until("echo", "running")
    with pytest.raises(Unavailable):
        await home.call_tool("crashes_in_tool", "crash", code=7)
    crashed = await home.event("plugin.crashed", "crashes_in_tool")
    assert (crashed["exit_code"], crashed["signal"], crashed["restart_in_s"]) == (7, None, 1.0)
    assert crashed["stderr"] == ["the rogue says goodbye"]
    assert "7" in crashed["reason"]
    await home.event("plugin.started", "crashes_in_tool", count=2)
    again = await home.until("crashes_in_tool", "running")
    assert again["restarts"] == 1 and again["generation"] == 2 and again["pid"] != first["pid"]
    assert (await home.call_tool("crashes_in_tool", "where"))["content"] == again["pid"]
    assert (await home.plugins())["echo"] == bystander, "nobody else noticed"


async def test_the_fourth_crash_leaves_a_plugin_stopped_until_a_person_acts(home: Home) -> None:
    home.add("exits_zero")
    await home.start_host()
    last = await home.event("plugin.crashed", "exits_zero", count=4)
    delays = [e.payload["restart_in_s"] for e in home.events if e.topic == "plugin.crashed"]
    assert delays == [1.0, 2.0, 3.0, None], "exit code 0 without being asked is a crash too"
    assert last["state"] == "stopped"
    entry = await home.until("exits_zero", "stopped")
    assert entry["pid"] is None and "crashed 4 times within 5m" in entry["reason"]
    assert await home.operator.call("host.restart", {"name": "exits_zero"}) == {
        "plugins": ["exits_zero"],
        "problems": {},
    }
    crashed = await home.event("plugin.crashed", "exits_zero", count=5)
    assert crashed["restart_in_s"] == 1.0, "a person's restart begins the count anew"


async def test_the_limit_is_a_setting(home: Home) -> None:
    home.config = {"core.plugin.restart_limit": 0, "core.plugin.restart_window": "1m"}
    home.add("dies_at_import")
    await home.start_host()
    await home.event("plugin.crashed", "dies_at_import")
    # Nothing makes the settings come before the first crash, so a person restarts it once they have come.
    with pytest.raises(Unavailable, match="SIGKILL"):
        await home.operator.call("host.restart", {"name": "dies_at_import"})
    entry = await home.until("dies_at_import", "stopped")
    assert "crashed 1 times within 1m" in entry["reason"]


@pytest.mark.parametrize(
    ("rogue", "words"),
    [
        ("raises_at_import", "RuntimeError: this plugin was never finished"),
        ("leaves_at_import", "SystemExit"),
        ("has_no_plugin", "has no plugin"),
        ("misspells_manifest", "descripton"),
        ("no_entry", "start.py is missing"),
        ("takes_a_service_name", "'memory' belongs to the agent itself"),
        ("impostor_echo", "the name echo is taken by"),
    ],
)
async def test_what_cannot_work_fails_at_once_with_a_plain_reason(home: Home, rogue: str, words: str) -> None:
    home.add("echo")
    home.add(rogue, tier="external")
    await home.start_host()
    await home.until("echo", "running")
    entry = await home.until(rogue, "failed")
    assert words in entry["reason"]
    assert entry["restarts"] == 0 and entry["pid"] is None and entry["tier"] == "external"
    assert (await home.call_tool("echo", "echo", text="still here"))["content"] == "still here"


async def test_a_failing_on_start_is_tried_again_since_it_may_pass(home: Home) -> None:
    home.add("fails_in_start")
    await home.start_host()
    crashed = await home.event("plugin.crashed", "fails_in_start")
    assert "start failed: OSError: the port is in use" in crashed["reason"]
    entry = await home.until("fails_in_start", "restarting")
    assert "restarts in" in entry["reason"]
    with pytest.raises(Unavailable, match="the port is in use"):
        await home.operator.call("host.restart", {"name": "fails_in_start"})


async def test_a_plugin_cannot_take_another_ones_name_on_the_bus(home: Home) -> None:
    home.add("echo")
    home.add("lies_about_its_name", tier="external")
    await home.start_host()
    await home.until("echo", "running")
    crashed = await home.event("plugin.crashed", "lies_about_its_name")
    assert "echo" in crashed["reason"]
    assert (await home.call_tool("echo", "echo", text="me"))["content"] == "me"


async def test_a_plugin_that_hangs_or_spins_holds_up_no_other(home: Home) -> None:
    home.add("echo", "hangs_in_start", "spins")
    await home.start_host()
    await home.until("echo", "running")
    await home.until("spins", "running")
    spin = asyncio.create_task(home.call_tool("spins", "spin"))
    assert (await home.plugins())["hangs_in_start"]["state"] == "starting"
    async with asyncio.timeout(2):
        assert (await home.call_tool("echo", "echo", text="quick"))["content"] == "quick"
    assert await home.stop_host() == 0
    spin.cancel()
    await asyncio.gather(spin, return_exceptions=True)
    assert home.processes() == [], "those that do not react to SIGTERM are killed"


async def test_memory_that_a_plugin_cannot_have_is_its_own_error(home: Home) -> None:
    home.add("grabs_memory")
    await home.start_host()
    pid = (await home.until("grabs_memory", "running"))["pid"]
    answer = await home.call_tool("grabs_memory", "grab", gigabytes=4)
    assert answer["is_error"] and "MemoryError" in answer["error"]["detail"]
    assert (await home.plugins())["grabs_memory"]["pid"] == pid


async def test_a_flood_of_output_is_bounded_and_harms_nobody(home: Home) -> None:
    home.add("floods_stdout", "echo")
    host = await home.start_host()
    await home.until("floods_stdout", "running")
    await home.until("echo", "running")
    before = int(status_of(host.pid)["VmRSS"].split()[0])
    for _ in range(20):
        async with asyncio.timeout(2):
            await home.call_tool("echo", "echo", text="dry")
        await asyncio.sleep(0.05)
    after = int(status_of(host.pid)["VmRSS"].split()[0])
    assert after - before < 24 * 1024, "the supervisor's memory stays bounded, in kB"
    assert await home.stop_host() == 0
    text = home.log_of("floods_stdout")
    assert "lines held back" in text
    assert len(text) < 20 * 1024 * 1024
    assert max(map(len, text.splitlines())) < 20_000


async def test_nothing_that_a_plugin_started_outlives_it(home: Home) -> None:
    home.add("forks_grandchildren")
    await home.start_host()
    await home.until("forks_grandchildren", "running")
    pids = (await home.call_tool("forks_grandchildren", "fork"))["content"]
    assert len(pids) == 4 and all(orphans.look_at(pid) for pid in pids)
    with pytest.raises(Unavailable):
        await home.call_tool("forks_grandchildren", "crash")
    await gone(pids)


async def gone(pids: list[int], within_s: float = 5.0) -> None:
    """Wait until none of the processes lives."""
    async with asyncio.timeout(within_s):
        while any((found := orphans.look_at(pid)) and not found.is_dead for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.chaos
async def test_killing_the_supervisor_leaves_no_process_behind(home: Home) -> None:
    home.add("forks_grandchildren", "echo")
    host = await home.start_host()
    await home.until("forks_grandchildren", "running")
    await home.until("echo", "running")
    await home.call_tool("forks_grandchildren", "fork")
    processes = home.processes()
    assert len(processes) >= 7
    host.send_signal(signal.SIGKILL)
    await gone(processes, within_s=2.0)
    assert home.processes() == []


@pytest.mark.chaos
async def test_plugins_outlive_the_zygote_which_comes_back(home: Home) -> None:
    home.add("echo", "crashes_in_tool")
    await home.start_host()
    before = await home.until("echo", "running")
    await home.until("crashes_in_tool", "running")
    zygote = (await home.operator.call("host.plugins"))["zygote_pid"]
    os.kill(zygote, signal.SIGKILL)
    assert (await home.call_tool("echo", "echo", text="alive"))["content"] == "alive"
    with pytest.raises(Unavailable):
        await home.call_tool("crashes_in_tool", "crash")
    await home.event("plugin.started", "crashes_in_tool", count=2)
    answer = await home.operator.call("host.plugins")
    assert answer["zygote_pid"] != zygote
    assert (await home.plugins())["echo"] == before


@pytest.mark.chaos
async def test_plugins_outlive_the_kernel_and_register_again(home: Home) -> None:
    home.add("echo")
    await home.start_host()
    before = await home.until("echo", "running")
    await home.stop_kernel()
    await home.start_kernel()
    await home.kernel.wait_registered("echo", 20)
    assert (await home.call_tool("echo", "echo", text="again"))["content"] == "again"
    assert (await home.plugins())["echo"] == before


@pytest.mark.chaos
async def test_plugins_come_back_after_the_host_was_killed(home: Home) -> None:
    home.add("echo")
    host = await home.start_host()
    first = await home.until("echo", "running")
    host.send_signal(signal.SIGKILL)
    await host.wait()
    await home.start_host()
    await home.event("plugin.started", "echo", count=2)
    second = await home.until("echo", "running")
    assert second["generation"] > first["generation"], "the hub refuses a process older than the one that it knew"


async def test_a_plugin_that_does_not_stop_is_killed_and_the_others_stop_meanwhile(home: Home) -> None:
    home.add("hangs_in_stop", "echo")
    await home.start_host()
    await home.until("hangs_in_stop", "running")
    await home.until("echo", "running")
    began = asyncio.get_running_loop().time()
    assert await home.stop_host() == 0
    assert asyncio.get_running_loop().time() - began < 5.5
    assert home.processes() == []


async def test_the_host_can_be_stopped_while_there_is_no_kernel(home: Home) -> None:
    home.add("echo")
    await home.stop_kernel()
    await home.start_host()
    async with asyncio.timeout(20):
        while len(home.processes()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await home.stop_host() == 0
    assert home.processes() == []
    await home.start_kernel()


async def test_disabling_lasts_over_a_restart_of_the_host(home: Home) -> None:
    home.add("echo")
    await home.start_host()
    await home.until("echo", "running")
    assert (await home.operator.call("host.disable", {"name": "echo"}))["plugins"] == ["echo"]
    assert (await home.operator.call("host.disable", {"name": "echo"}))["plugins"] == []
    entry = (await home.plugins())["echo"]
    assert (entry["state"], entry["pid"]) == ("disabled", None)
    with pytest.raises(Conflict, match="disabled"):
        await home.operator.call("host.restart", {"name": "echo"})
    await home.stop_host()
    await home.start_host()
    await home.until("echo", "disabled")
    assert (await home.operator.call("host.enable", {"name": "echo"}))["plugins"] == ["echo"]
    await home.until("echo", "running")
    assert json.loads((home.data_dir.plugins / "state.json").read_text())["disabled"] == []


async def test_reload_starts_anew_what_changed_and_nothing_else(home: Home) -> None:
    home.add("echo", "crashes_in_tool")
    await home.start_host()
    await home.until("echo", "running")
    other = await home.until("crashes_in_tool", "running")
    assert (await home.operator.call("host.reload", {"name": None}))["plugins"] == []
    main = home.builtin / "echo" / "main.py"
    main.write_text(main.read_text().replace('return " ".join', 'return "new: " + " ".join'))
    home.add("grabs_memory", tier="external")
    changed = await home.operator.call("host.reload", {"name": None})
    assert sorted(changed["plugins"]) == ["echo", "grabs_memory"]
    plugins = await home.plugins()
    assert plugins["echo"]["generation"] == 2 and plugins["grabs_memory"]["state"] == "running"
    assert plugins["crashes_in_tool"] == other
    assert (await home.call_tool("echo", "echo", text="code"))["content"] == "new: code"


async def test_a_reload_with_a_broken_manifest_changes_nothing(home: Home) -> None:
    home.add("echo")
    await home.start_host()
    before = await home.until("echo", "running")
    (home.builtin / "echo" / "plugin.json").write_text("{")
    with pytest.raises(Invalid, match=r"plugin\.json"):
        await home.operator.call("host.reload", {"name": "echo"})
    answer = await home.operator.call("host.reload", {})
    assert answer["plugins"] == [] and "plugin.json" in answer["problems"]["echo"]
    assert (await home.plugins())["echo"] == before


async def test_orders_for_plugins_that_do_not_exist_are_refused(home: Home) -> None:
    home.add("echo")
    await home.start_host()
    await home.until("echo", "running")
    for verb in ("restart", "reload", "enable", "disable"):
        with pytest.raises(NotFound, match="nothing"):
            await home.operator.call(f"host.{verb}", {"name": "nothing"})
    with pytest.raises(Invalid):
        await home.operator.call("host.restart", {})
    health = await home.operator.call("host.health")
    assert health["state"] == "running" and health["plugins"] == {"running": 1}


async def test_a_second_host_on_the_same_data_is_refused(home: Home) -> None:
    home.add("echo")
    first = await home.start_host()
    await home.until("echo", "running")
    second = await home.start_host()
    _, stderr = await asyncio.wait_for(second.communicate(), 20)
    assert second.returncode == 3 and b"another plugin host" in stderr
    home.host = first
    assert (await home.call_tool("echo", "echo", text="mine"))["content"] == "mine"
