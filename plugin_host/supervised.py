"""One plugin under supervision: started, watched, restarted after a crash, stopped when told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Unavailable
from homeagent_sdk.logging import get_logger
from homeagent_sdk.plugin.durations import format_duration
from homeagent_sdk.process import EXIT_CONFIGURATION
from plugin_host.child import KILL_S, Child, Launcher
from plugin_host.crash_policy import CrashPolicy, RestartLimit
from plugin_host.discovery import FoundPlugin
from plugin_host.launch import Launch
from plugin_host.reaper import Exit

START_LIMIT_S = 20.0
STOP_GRACE_S = 5.0
_LAUNCH_TRIES = 5
_LAUNCH_PAUSE_S = 0.5
_log = get_logger("plugins")

Publish = Callable[[str, dict[str, Any]], None]
MakeLaunch = Callable[[FoundPlugin], Launch]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all supervised plugins share."""

    launch: Launcher
    make_launch: MakeLaunch
    """Counts a start and says what the process is told."""
    publish: Publish
    """Puts an event on the ring; never waits."""
    after_exit: Callable[[], None]
    """Called when a plugin process has ended, to look for what it left behind."""
    limit: RestartLimit


@dataclass(frozen=True, slots=True)
class _End:
    """How one life of a plugin ended."""

    reason: str
    how: Exit | None = None
    has_reported: bool = False
    """Whether the process said itself that it failed."""
    is_hopeless: bool = False
    """Whether starting the same files again cannot help."""
    errors: tuple[str, ...] = ()
    """The last lines of stderr."""


class SupervisedPlugin:
    """A plugin and, while it is wanted, its process.

    ``state`` is starting, running, restarting, stopped, failed or disabled; ``reason`` says why it is not running.
    """

    def __init__(self, found: FoundPlugin, surroundings: Surroundings) -> None:
        self.found = found
        self.state = "failed" if found.problem else "stopped"
        self.reason = found.problem
        self.generation = 0
        self.restarts = 0
        self.started_at: float | None = None
        self._surroundings = surroundings
        self._crashes = CrashPolicy(surroundings.limit)
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._has_settled = asyncio.Event()

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.found.name

    @property
    def pid(self) -> int | None:
        """The pid of its process, if it has one."""
        return self._child.pid if self._child else None

    @property
    def is_active(self) -> bool:
        """Whether it runs, or will by itself."""
        return self._task is not None and not self._task.done()

    def describe(self) -> dict[str, Any]:
        """Return its entry for ``host.plugins``."""
        manifest = self.found.manifest
        return {
            "name": self.name,
            "kind": manifest.kind if manifest else "python",
            "tier": self.found.tier,
            "version": manifest.version if manifest else "",
            "description": manifest.description if manifest else {},
            "pid": self.pid,
            "state": self.state,
            "restarts": self.restarts,
            "started_at": self.started_at,
            "generation": self.generation,
            "reason": self.reason,
        }

    def take_over(self, found: FoundPlugin) -> None:
        """Use these files from the next start on."""
        self.found = found
        if found.problem:
            self._set("failed", found.problem)

    def start(self) -> None:
        """Start it, unless it is active or cannot be started. Crashes so far are forgotten."""
        if self.is_active or self.found.problem:
            return
        self._crashes.reset()
        self._stop.clear()
        self._set("starting", "")
        self._task = asyncio.create_task(self._keep_alive(), name=f"plugin-{self.name}")

    async def stop(self, *, state: str = "stopped", reason: str = "", grace_s: float = STOP_GRACE_S) -> None:
        """Stop it and wait until its processes are gone: SIGTERM, then SIGKILL to the group.

        :param state: stopped or disabled
        :param grace_s: between the two signals, in seconds
        """
        if self._task is not None and not self._task.done():
            self._stop.set()
            await self._end_child(grace_s)
            await asyncio.gather(self._task, return_exceptions=True)
        self._set(state, reason)

    async def settled(self, timeout_s: float) -> None:
        """Wait until its start has succeeded or failed, for at most ``timeout_s`` seconds."""
        try:
            await asyncio.wait_for(self._has_settled.wait(), timeout_s)
        except TimeoutError:
            return

    def kill(self, reason: str) -> None:
        """Kill a process that hangs; that counts as a crash."""
        if self._child is not None and not self._child.exited.done():
            self.reason = reason
            self._child.kill()

    def _set(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        if state == "starting":
            self._has_settled.clear()
        else:
            self._has_settled.set()

    async def _keep_alive(self) -> None:
        """Live, and live again as often as the crash policy allows."""
        try:
            while not self._stop.is_set():
                self._set("starting", "")
                end = await self._live_once()
                if self._stop.is_set():
                    self._publish_stopped(text("host.told_to_stop"))
                    return
                delay_s = None if end.is_hopeless else self._crashes.crashed(asyncio.get_running_loop().time())
                self._tell_of_crash(end, delay_s)
                if delay_s is None:
                    return
                self.restarts += 1
                await self._wait_or_stop(delay_s)
        except Exception as error:
            _log.exception("the supervision of a plugin failed", plugin=self.name)
            self._set("failed", text("host.supervision_failed", error=f"{type(error).__name__}: {error}"))

    async def _live_once(self) -> _End:
        """Start a process and wait for its end."""
        launch = self._surroundings.make_launch(self.found)
        self.generation = launch.generation
        began = time.monotonic()
        try:
            child = await self._launch(launch)
        except Unavailable as error:
            return _End(error.message)
        if child is None:
            return _End("")
        self._child = child
        try:
            if self._stop.is_set():
                child.kill()
            too_late = await self._wait_until_ready(child)
            if child.ready.done() and child.ready.result().state == "running" and not child.exited.done():
                self._now_runs(child, time.monotonic() - began)
            how = await child.exited
        finally:
            self._child = None
            self.started_at = None
            await child.close()
            self._surroundings.after_exit()
        return self._end_of(child, how, too_late)

    async def _launch(self, launch: Launch) -> Child | None:
        """Get a process from the zygote, which may itself have to be started again; None if told to stop."""
        for attempt in range(1, _LAUNCH_TRIES + 1):
            try:
                return await self._surroundings.launch(launch)
            except Unavailable as error:
                _log.warning("a plugin could not be started", plugin=self.name, reason=str(error), attempt=attempt)
                if attempt == _LAUNCH_TRIES:
                    raise
            await self._wait_or_stop(_LAUNCH_PAUSE_S)
            if self._stop.is_set():
                return None
        return None

    async def _wait_until_ready(self, child: Child) -> bool:
        """Wait for the first report or the end; kill what does neither in time, and then return True."""
        while not child.ready.done() and not child.exited.done():
            left_s = child.start_time_left(START_LIMIT_S)
            if left_s <= 0:
                child.kill()
                return True
            either: set[asyncio.Future[Any]] = {child.ready, child.exited}
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not child.exited.done() and child.ready.result().state == "failed":
            await asyncio.wait({child.exited}, timeout=STOP_GRACE_S)
            child.kill()
        return False

    def _now_runs(self, child: Child, took_s: float) -> None:
        self._set("running", "")
        self.started_at = time.time()
        _log.info("plugin started", plugin=self.name, pid=child.pid, seconds=round(took_s, 4))
        self._surroundings.publish("plugin.started", self._event(pid=child.pid))

    def _end_of(self, child: Child, how: Exit, too_late: bool) -> _End:
        report = child.last_report
        failure = report.reason if report is not None and report.state == "failed" else ""
        if too_late:
            reason = text("host.start_too_slow", seconds=f"{START_LIMIT_S:g}")
        elif failure:
            reason = failure
        elif self.reason:
            reason = self.reason
        elif how.code == 0:
            reason = text("host.ended_unasked")
        else:
            reason = how.describe()
        is_hopeless = bool(failure) and how.code == EXIT_CONFIGURATION
        return _End(reason, how, bool(failure), is_hopeless, tuple(child.errors()))

    def _tell_of_crash(self, end: _End, delay_s: float | None) -> None:
        if end.is_hopeless:
            state, reason = "failed", end.reason
        elif delay_s is None:
            limit = self._surroundings.limit
            count, window = limit.restarts + 1, format_duration(limit.window_s)
            state = "failed" if end.has_reported else "stopped"
            reason = text("host.crashed_too_often", count=count, window=window, reason=end.reason)
        else:
            state, reason = "restarting", text("host.restarts_in", seconds=f"{delay_s:g}", reason=end.reason)
        self._set(state, reason)
        how = {"exit_code": end.how.code, "signal": end.how.signal} if end.how else {"exit_code": None, "signal": None}
        _log.warning("plugin crashed", plugin=self.name, reason=reason, state=state, **how)
        event = self._event(reason=end.reason, state=state, restart_in_s=delay_s, stderr=list(end.errors), **how)
        self._surroundings.publish("plugin.crashed", event)
        if delay_s is None:
            self._publish_stopped(reason)

    def _publish_stopped(self, reason: str) -> None:
        _log.info("plugin stopped", plugin=self.name, reason=reason)
        self._surroundings.publish("plugin.stopped", self._event(reason=reason))

    def _event(self, **facts: Any) -> dict[str, Any]:
        return {"name": self.name, "generation": self.generation, **facts}

    async def _wait_or_stop(self, delay_s: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), delay_s)
        except TimeoutError:
            return

    async def _end_child(self, grace_s: float) -> None:
        child = self._child
        if child is None:
            return
        child.terminate()
        done, _ = await asyncio.wait({child.exited}, timeout=grace_s)
        if not done:
            _log.warning("plugin did not stop in time and is killed", plugin=self.name, grace_s=grace_s)
            child.kill()
            done, _ = await asyncio.wait({child.exited}, timeout=KILL_S)
            if not done:
                _log.error("a killed plugin does not end", plugin=self.name, pid=child.pid)
