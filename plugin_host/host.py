"""The plugin host on the bus: what it needs of the others, and what it answers them (``host.*``)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from homeagent_sdk.bus.abc import BusPeer, CallContext, Event, EventHandler
from homeagent_sdk.errors import Invalid
from homeagent_sdk.logging import get_logger
from homeagent_sdk.paths import DataDir
from plugin_host import orphans
from plugin_host.child import ZygoteLauncher
from plugin_host.crash_policy import RestartLimit
from plugin_host.discovery import FoundPlugin
from plugin_host.hung import HungPlugins
from plugin_host.launch import Launch
from plugin_host.plugin_log import LogWriter
from plugin_host.publisher import Publisher
from plugin_host.reaper import Reaper
from plugin_host.restart_settings import RestartSettings
from plugin_host.roster import Changes, Folders, Roster
from plugin_host.state_file import StateFile
from plugin_host.supervised import Surroundings
from plugin_host.sweeper import Sweeper, kill_all
from plugin_host.zygote_client import Zygote

SHUTDOWN_GRACE_S = 3.5
"""What plugins have to stop when the host itself stops, which has 5 s in all."""

_MINT_S = 20.0
_log = get_logger("host")


class PluginHost:
    """Runs all plugins.

    :param peer: the host's own place on the bus, not started yet
    :param mark: told to all processes below this host; the next host of this data directory knows them by it
    """

    def __init__(self, peer: BusPeer, data_dir: DataDir, folders: Folders, mark: str) -> None:
        self._peer = peer
        self._data_dir = data_dir
        self._mark = mark
        self._state = StateFile(data_dir.plugins / "state.json")
        self._logs = LogWriter(data_dir.log)
        self._reaper = Reaper()
        self._zygote = Zygote(self._reaper, mark)
        self._publisher = Publisher(peer)
        limit = RestartLimit()
        self._settings = RestartSettings(peer, limit)
        self._sweeper = Sweeper(self._reaper, self._zygote, lambda: self.roster.living())
        launcher = ZygoteLauncher(self._zygote, self._reaper, self._mint, self._logs.log_of)
        surroundings = Surroundings(
            launcher.launch, self._make_launch, self._publisher.publish, self._sweeper.wake, limit
        )
        self.roster = Roster(folders, self._state, surroundings)
        self._hung = HungPlugins(self.roster.running)
        self._not_yet_heard: list[tuple[str, EventHandler]] = [
            ("peer.*", self._hung.on_event),
            ("config.changed", self._on_config_changed),
        ]

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the zygote and the plugins, without waiting for the kernel: they load while it starts."""
        self._reaper.start()
        self._zygote.start()
        self._logs.start()
        self._publisher.start()
        self._sweeper.start()
        for verb in ("plugins", "restart", "reload", "enable", "disable", "health"):
            self._peer.serve(f"host.{verb}", getattr(self, f"_{verb}"))
        self._peer.on_welcome(self._on_welcome)
        await self._state.load()
        await self.roster.start_all()

    async def stop(self) -> None:
        """Stop all plugins at the same time, then the zygote; no process below this one is left."""
        self._hung.stop()
        await self.roster.stop_all(SHUTDOWN_GRACE_S)
        await self._zygote.stop()
        await self._sweeper.stop()
        await asyncio.to_thread(kill_all, lambda: orphans.marked(self._mark))
        await self._publisher.stop()
        await self._logs.stop()
        await self._state.save_if_changed()
        self._reaper.stop()

    async def _on_welcome(self) -> None:
        """Read the settings; listen for what was not subscribed to yet, since a subscription outlives the kernel."""
        await self._settings.read()
        while self._not_yet_heard:
            topics, handler = self._not_yet_heard[0]
            await self._peer.subscribe([topics], handler)
            self._not_yet_heard.pop(0)

    async def _on_config_changed(self, event: Event) -> None:
        if self._settings.concerns(event):
            await self._settings.read()

    # -- what the plugins need ----------------------------------------------------------------------------------------

    def _make_launch(self, found: FoundPlugin) -> Launch:
        return Launch(
            name=found.name,
            folder=str(found.folder),
            data_dir=str(self._data_dir.root),
            tier=found.tier,
            generation=self._state.next_generation(found.name),
            supervisor_pid=os.getpid(),
        )

    async def _mint(self, launch: Launch) -> str:
        body = {"name": launch.name, "generation": launch.generation, "tier": launch.tier}
        answer = await self._peer.call("hub.mint_token", body, timeout_s=_MINT_S, idempotent=True)
        await self._state.save_if_changed()
        return str(answer["token"])

    # -- host.* -------------------------------------------------------------------------------------------------------

    async def _plugins(self, body: Any, call: CallContext) -> dict[str, Any]:
        return {"plugins": [each.describe() for each in self.roster.plugins], "zygote_pid": self._zygote.pid}

    async def _health(self, body: Any, call: CallContext) -> dict[str, Any]:
        states: dict[str, int] = {}
        for plugin in self.roster.plugins:
            states[plugin.state] = states.get(plugin.state, 0) + 1
        facts = {"zygote_pid": self._zygote.pid, "plugins": states, "events_dropped": self._publisher.dropped}
        return {"state": "running", **facts}

    async def _restart(self, body: Any, call: CallContext) -> dict[str, Any]:
        return _answer(await self.roster.restart(_name(body)))

    async def _reload(self, body: Any, call: CallContext) -> dict[str, Any]:
        name = None if body is None or body.get("name") is None else _name(body)
        return _answer(await self.roster.reload(name))

    async def _enable(self, body: Any, call: CallContext) -> dict[str, Any]:
        return _answer(await self.roster.enable(_name(body)))

    async def _disable(self, body: Any, call: CallContext) -> dict[str, Any]:
        return _answer(await self.roster.disable(_name(body)))


def _name(body: Any) -> str:
    name = body.get("name") if isinstance(body, dict) else None
    if not isinstance(name, str) or not name:
        raise Invalid("the name of a plugin is missing", field="name", hint='send {"name": "echo"}')
    return name


def _answer(changes: Changes) -> dict[str, Any]:
    return {"plugins": changes.plugins, "problems": changes.problems}
