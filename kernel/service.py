"""The kernel put together: bus, registries, journal, turns."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import structlog

from homeagent_sdk.bus import Event
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.logging import set_level
from homeagent_sdk.paths import DataDir
from kernel.backup import Backup
from kernel.bus import Hub, KernelPeer, access, read_keys
from kernel.channels import ChannelRegistry
from kernel.config import ConfigRegistry, config_database
from kernel.journal import Journal
from kernel.methods.backup import BackupMethods
from kernel.methods.ledger import LedgerMethods
from kernel.methods.persona import PersonaMethods
from kernel.methods.plugins import PluginMethods
from kernel.methods.principals import PrincipalMethods
from kernel.methods.settings import SettingMethods
from kernel.methods.status import StatusMethods
from kernel.methods.turns import TurnMethods
from kernel.principals import Principals
from kernel.prompt import PastTurn, Timelines
from kernel.prompt.persona import Persona
from kernel.remember import Rememberer
from kernel.sources import Sources
from kernel.stage_host import StageHost
from kernel.tools import MEMORY, ToolRegistry
from kernel.turns.environment import TurnEnvironment
from kernel.turns.history import load_timeline
from kernel.turns.lanes import Lanes, Slots
from kernel.turns.machine import TurnMachine
from kernel.turns.resumption import expect_unfinished

_PRUNE_INTERVAL_S: Final = 3600.0
_TIMELINE_TURNS: Final = 200
_ASK_TIMEOUT_S: Final = 5.0
_PLUGINS_BACK_S: Final = 10.0
_PLUGINS_POLL_S: Final = 0.1
_log = structlog.get_logger("kernel")


class Kernel:
    """One kernel process.

    :param overrides: settings for this run alone
    :param owner_key: the owner's key, as given by environment
    """

    def __init__(self, data_dir: DataDir, overrides: dict[str, str], owner_key: str | None = None) -> None:
        self._data_dir = data_dir
        self._owner_key = owner_key
        self._database = config_database(data_dir.kernel / "config.db")
        self._config = ConfigRegistry(self._database, overrides)
        self._principals = Principals(self._database)
        self._persona = Persona(self._database, self._config)
        self._journal = Journal(data_dir.kernel / "journal.db")
        self._stages = StageHost()
        self._tools = ToolRegistry()
        self._channels = ChannelRegistry()
        self._peer_states: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cleanup = AsyncExitStack()

    async def start(self) -> None:
        """Open the databases, bind the bus, take up unfinished turns; inputs are accepted from then on."""
        await self._open_databases()
        await self._open_bus()
        self._assemble()
        await asyncio.to_thread(self._backup.clear)
        self._serve()
        await expect_unfinished(self._journal, self._machine, self._lanes)
        await self._bus.start()
        self._rememberer.start()
        await self._bus.subscribe(["plugin.stopped"], self._plugin_stopped)
        self._lanes.open()
        self._spawn(self._prune_for_ever(), "journal-pruning")
        _log.info("kernel started", epoch=self._hub.epoch)

    async def stop(self) -> None:
        """Undo what was done of :meth:`start`, in reverse; unfinished turns stay in the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cleanup.aclose()

    # -- start --------------------------------------------------------------------------------------------------------

    async def _open_databases(self) -> None:
        await self._database.open()
        self._cleanup.push_async_callback(self._database.close)
        await self._config.load()
        set_level(self._config.text("core.log.level"))
        await self._principals.load()
        await self._persona.load()
        if self._owner_key:
            await self._principals.import_key("owner", self._owner_key)
        await self._journal.open()
        self._cleanup.push_async_callback(self._journal.close)

    async def _open_bus(self) -> None:
        loop = asyncio.get_running_loop()

        def changed(peer: dict[str, Any], what: str) -> None:
            loop.call_soon_threadsafe(self._peer_changed, peer, what)

        keys = await asyncio.to_thread(read_keys, self._data_dir.keys)
        self._hub = Hub(self._data_dir.run, keys, changed)
        await asyncio.to_thread(self._hub.start)
        self._cleanup.push_async_callback(asyncio.to_thread, self._hub.stop)
        self._bus = KernelPeer(self._hub, self._data_dir.run)
        self._cleanup.push_async_callback(self._bus.stop)

    def _assemble(self) -> None:
        self._backup = Backup(self._bus, (self._database, self._journal))
        self._sources = Sources(self._bus)
        self._rememberer = Rememberer(self._bus, self._journal.unremembered, self._journal.mark_remembered)
        self._cleanup.push_async_callback(self._rememberer.stop)
        self._plugins = PluginMethods(self._config, self._tools, self._stages, self._channels)
        self._timelines = Timelines(self._load_timeline)
        environment = TurnEnvironment(
            bus=self._bus,
            config=self._config,
            journal=self._journal,
            stages=self._stages,
            tools=self._tools,
            channels=self._channels,
            timelines=self._timelines,
            sources=self._sources,
            rememberer=self._rememberer,
            persona=self._persona,
            wall_clock=time.time,
            absent_tools=self._plugins.absent_tools,
            plugins_back=self._plugins_back,
        )
        self._machine = TurnMachine(environment)
        self._slots = Slots(lambda: self._config.int("core.agent.max_concurrent_turns"))
        self._lanes = Lanes(
            self._machine.run,
            self._machine.withdraw,
            self._slots,
            lambda: self._config.int("core.agent.queue_limit"),
        )
        self._cleanup.push_async_callback(self._interrupt_turns)

    async def _interrupt_turns(self) -> None:
        self._machine.is_closing = True
        await self._lanes.close()

    def _serve(self) -> None:
        self._plugins.serve(self._bus)
        SettingMethods(self._config).serve(self._bus)
        PrincipalMethods(self._principals).serve(self._bus)
        LedgerMethods(self._journal, self._rememberer, self._timelines).serve(self._bus)
        PersonaMethods(self._persona).serve(self._bus)
        BackupMethods(self._backup).serve(self._bus)
        TurnMethods(
            self._bus, self._journal, self._lanes, self._machine, self._sources, self._principals.exists
        ).serve()
        StatusMethods(self._bus, self._journal, self._lanes, self._slots, self._channels, self._peer_states.get).serve(
            self._bus
        )
        self._config.on_change(self._config_changed)

    async def _plugins_back(self) -> None:
        """Wait until plugins and memory have registered again: a turn that is taken up must not miss its tools."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _PLUGINS_BACK_S
        while clock() < deadline:
            if self._peer_states.get("host") == "running" and await self._are_registered():
                return
            await asyncio.sleep(_PLUGINS_POLL_S)
        _log.warning("turns are taken up although not all tools are back", registered=sorted(self._plugins.registered))

    async def _are_registered(self) -> bool:
        try:
            answer = await self._bus.call("host.plugins", timeout_s=_ASK_TIMEOUT_S)
        except HomeAgentError as error:
            _log.info("plugins not known", reason=str(error))
            return False
        coming = {each["name"] for each in answer["plugins"] if each["state"] in ("starting", "running", "restarting")}
        return self._plugins.registered.keys() >= coming | {MEMORY}

    async def _load_timeline(self, channel: str, conversation: str, principal: str) -> list[PastTurn]:
        most = min(_TIMELINE_TURNS, self._config.int("core.agent.max_context_size"))
        return await load_timeline(self._journal, (channel, conversation, principal), most)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _peer_changed(self, peer: dict[str, Any], what: str) -> None:
        name = peer["name"]
        if peer["tier"] == "operator":
            return
        if what == "gone":
            self._peer_states.pop(name, None)
            if peer["tier"] in access.PLUGIN_TIERS or name == MEMORY:
                self._plugins.forget(name, peer["generation"])
            return
        self._peer_states[name] = "suspect" if what == "suspect" else "running"
        if name == MEMORY:
            self._rememberer.wake()
        elif name == "provider":
            self._sources.forget()

    async def _plugin_stopped(self, event: Event) -> None:
        """Take away the guards of a plugin that a person disabled; those of a crashed one keep the turns closed."""
        name = str(event.payload["name"])
        try:
            answer = await self._bus.call("host.plugins", timeout_s=_ASK_TIMEOUT_S)
        except HomeAgentError as error:
            _log.warning("not known whether a plugin was disabled", plugin=name, reason=str(error))
            return
        if not any(each["name"] == name and each["state"] != "disabled" for each in answer["plugins"]):
            self._plugins.forget(name, int(event.payload["generation"]), for_good=True)

    async def _config_changed(self, keys: list[str]) -> None:
        self._sources.forget()
        set_level(self._config.text("core.log.level"))
        await self._bus.publish("config.changed", {"keys": keys})

    async def _prune_for_ever(self) -> None:
        while True:
            try:
                keep_s = self._config.duration("core.journal.keep")
                pruned = await self._journal.prune(keep_s, _TIMELINE_TURNS)
                if pruned:
                    _log.info("journal pruned", turns=pruned)
            except HomeAgentError as error:
                _log.warning("journal not pruned", reason=str(error))
            await asyncio.sleep(_PRUNE_INTERVAL_S)

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
