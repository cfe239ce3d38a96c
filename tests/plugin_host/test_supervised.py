"""The supervision of one plugin, with processes that exist in the test alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus.abc import Event
from homeagent_sdk.errors import Unavailable
from homeagent_sdk.plugin.manifest import parse_manifest
from homeagent_sdk.process import EXIT_CONFIGURATION
from plugin_host import supervised
from plugin_host.crash_policy import RestartLimit
from plugin_host.discovery import FoundPlugin
from plugin_host.hung import HungPlugins
from plugin_host.launch import Launch
from plugin_host.reaper import Exit
from plugin_host.supervised import SupervisedPlugin, Surroundings
from plugin_host.token_line import Report


class FakeChild:
    """A process that does what the test says; ``obeys`` SIGTERM unless told otherwise."""

    def __init__(self, pid: int, *, obeys: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self.ready: asyncio.Future[Report] = loop.create_future()
        self.last_report: Report | None = None
        self.obeys = obeys
        self.left_s = 1000.0
        self.signals: list[str] = []
        self.is_closed = False

    def start_time_left(self, limit_s: float) -> float:
        return self.left_s

    def errors(self) -> list[str]:
        return ["last words"]

    def report(self, state: str, reason: str = "") -> None:
        self.last_report = Report(state, reason)
        if not self.ready.done():
            self.ready.set_result(self.last_report)

    def end(self, how: Exit) -> None:
        if not self.exited.done():
            self.exited.set_result(how)

    def terminate(self) -> None:
        self.signals.append("TERM")
        if self.obeys:
            self.end(Exit(code=0))

    def kill(self) -> None:
        self.signals.append("KILL")
        self.end(Exit(signal=9))

    async def close(self) -> None:
        self.is_closed = True


class Stage:
    """A plugin, its fake processes, and what was published."""

    def __init__(self, restarts: int = 3) -> None:
        self.children: list[FakeChild] = []
        self.refusals = 0
        self.obeys = True
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._born = asyncio.Event()
        manifest = parse_manifest(
            {"name": "p", "version": "1", "kind": "python", "entry": "m.py", "description": {"en": "x"}}
        )
        found = FoundPlugin("p", Path("/p"), "builtin", manifest, digest="d")
        surroundings = Surroundings(
            self._launch, self._make, self._publish, lambda: None, RestartLimit(restarts=restarts)
        )
        self.plugin = SupervisedPlugin(found, surroundings)

    def _make(self, found: FoundPlugin) -> Launch:
        return Launch(found.name, "/p", "/d", "builtin", self.plugin.generation + 1, 1)

    def _publish(self, topic: str, payload: dict[str, Any]) -> None:
        self.events.append((topic, payload))

    async def _launch(self, launch: Launch) -> FakeChild:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the zygote died over it")
        self.children.append(FakeChild(100 + launch.generation, obeys=self.obeys))
        self._born.set()
        return self.children[-1]

    async def child(self) -> FakeChild:
        """Wait for the next process."""
        async with asyncio.timeout(5):
            await self._born.wait()
        self._born.clear()
        return self.children[-1]

    async def running(self) -> FakeChild:
        child = await self.child()
        child.report("running")
        await self.plugin.settled(5)
        return child

    async def until(self, state: str) -> None:
        async with asyncio.timeout(5):
            while self.plugin.state != state:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def topics(self) -> list[str]:
        return [topic for topic, _ in self.events]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart after milliseconds instead of seconds."""
    monkeypatch.setattr("plugin_host.crash_policy.DELAY_STEP_S", 0.001)
    monkeypatch.setattr(supervised, "_LAUNCH_PAUSE_S", 0.001)


async def test_a_deliberate_stop_is_no_crash() -> None:
    stage = Stage()
    stage.plugin.start()
    child = await stage.running()
    await stage.plugin.stop()
    assert child.signals == ["TERM"] and child.is_closed
    assert (stage.plugin.state, stage.plugin.restarts) == ("stopped", 0)
    assert stage.topics() == ["plugin.started", "plugin.stopped"]


async def test_a_plugin_that_ignores_sigterm_is_killed() -> None:
    stage = Stage()
    stage.obeys = False
    stage.plugin.start()
    child = await stage.running()
    await stage.plugin.stop(grace_s=0.01)
    assert child.signals == ["TERM", "KILL"]
    assert stage.plugin.state == "stopped" and "plugin.crashed" not in stage.topics()


async def test_the_end_of_a_process_with_code_0_is_a_crash() -> None:
    stage = Stage()
    stage.plugin.start()
    (await stage.running()).end(Exit(code=0))
    await stage.running()
    topic, payload = stage.events[1]
    assert topic == "plugin.crashed" and "by itself" in payload["reason"]
    assert payload["stderr"] == ["last words"] and payload["exit_code"] == 0
    assert stage.plugin.restarts == 1
    await stage.plugin.stop()


async def test_after_too_many_crashes_it_stays_down_until_a_person_acts() -> None:
    stage = Stage(restarts=1)
    stage.plugin.start()
    for _ in range(2):
        (await stage.running()).end(Exit(signal=11))
    await stage.until("stopped")
    assert "SIGSEGV" in stage.plugin.reason
    assert not stage.plugin.is_active
    stage.plugin.start()
    await stage.running()
    assert stage.plugin.state == "running" and stage.plugin.reason == ""
    await stage.plugin.stop()


async def test_a_process_that_reports_nothing_is_killed_at_its_limit() -> None:
    stage = Stage(restarts=0)
    original = stage._launch

    async def slow(launch: Launch) -> FakeChild:
        child = await original(launch)
        child.left_s = 0.0
        return child

    stage.plugin._surroundings = Surroundings(slow, stage._make, stage._publish, lambda: None, RestartLimit(restarts=0))
    stage.plugin.start()
    await stage.until("stopped")
    assert stage.children[0].signals == ["KILL"]
    assert "20 s" in stage.plugin.reason
    assert stage.events[0][0] == "plugin.crashed"


async def test_a_report_of_failure_with_the_configuration_code_is_final() -> None:
    stage = Stage()
    stage.plugin.start()
    child = await stage.child()
    child.report("failed", "main.py has no plugin")
    child.end(Exit(code=EXIT_CONFIGURATION))
    await stage.until("failed")
    assert stage.plugin.reason == "main.py has no plugin"
    assert len(stage.children) == 1


async def test_other_failures_are_tried_again_and_end_as_failed() -> None:
    stage = Stage(restarts=1)
    stage.plugin.start()
    for _ in range(2):
        child = await stage.child()
        child.report("failed", "the port is in use")
        child.end(Exit(code=1))
    await stage.until("failed")
    assert "the port is in use" in stage.plugin.reason


async def test_a_zygote_that_dies_over_a_launch_is_no_crash_of_the_plugin() -> None:
    stage = Stage()
    stage.refusals = 2
    stage.plugin.start()
    await stage.running()
    assert (stage.plugin.restarts, stage.topics()) == (0, ["plugin.started"])
    await stage.plugin.stop()


async def test_a_stop_during_the_wait_for_a_restart_ends_the_wait() -> None:
    stage = Stage()
    stage.plugin._crashes.crashed = lambda now: 3600.0  # type: ignore[method-assign]
    stage.plugin.start()
    (await stage.running()).end(Exit(code=1))
    await stage.until("restarting")
    await asyncio.wait_for(stage.plugin.stop(), 5)
    assert stage.plugin.state == "stopped"


async def test_a_plugin_that_the_kernel_gave_up_is_killed_unless_it_comes_back() -> None:
    stage = Stage()
    stage.plugin.start()
    child = await stage.running()
    hung = HungPlugins(lambda name: stage.plugin if stage.plugin.state == "running" else None, grace_s=0.01)
    await hung.on_event(Event("peer.gone", "e", 1, 0.0, {"name": "p"}))
    await hung.on_event(Event("peer.up", "e", 1, 0.0, {"name": "p"}))
    await asyncio.sleep(0.03)
    assert child.signals == [], "it came back"
    await hung.on_event(Event("peer.gone", "e", 1, 0.0, {"name": "p", "generation": 0}))
    await asyncio.sleep(0.03)
    assert child.signals == [], "that was an earlier process"
    await hung.on_event(Event("peer.gone", "e", 2, 0.0, {"name": "p"}))
    await stage.running()
    assert child.signals == ["KILL"]
    assert "did not answer" in stage.events[1][1]["reason"]
    hung.stop()
    await stage.plugin.stop()
