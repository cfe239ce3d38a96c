"""A plugin at work: wires what the decorators collected to the bus, and tells every new kernel of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from homeagent_sdk.bus.abc import BusPeer, Event, EventHandler, Subscription
from homeagent_sdk.errors import HomeAgentError, Invalid, Overloaded, TimedOut, Unavailable
from homeagent_sdk.plugin.calls import Calls, Threads
from homeagent_sdk.plugin.manifest import Manifest
from homeagent_sdk.plugin.plugin import Plugin, Surroundings

STOP_S = 5.0
"""What all ``on_stop`` handlers of a plugin have together, in seconds."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PASSING = (Unavailable, TimedOut, Overloaded)


class PluginRuntime:
    """Runs one plugin on one peer.

    :param data_dir: the plugin's own folder; made if it is not there
    :param generation: how often the plugin was started, counted by whoever starts it
    :param welcome_timeout_s: how long to wait for a kernel at start
    """

    def __init__(
        self,
        plugin: Plugin,
        manifest: Manifest,
        data_dir: Path,
        peer: BusPeer,
        *,
        generation: int = 0,
        welcome_timeout_s: float = 30.0,
    ) -> None:
        self._plugin = plugin
        self._manifest = manifest
        self._data_dir = data_dir
        self._peer = peer
        self._generation = generation
        self._welcome_timeout_s = welcome_timeout_s
        self._threads = Threads(manifest.name)
        self._welcomed = asyncio.Event()
        self._has_started = False
        self._running: asyncio.Future[None] | None = None
        self._announcer: asyncio.Task[None] | None = None
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Connect, define the settings, run the ``on_start`` handlers and register; then the plugin is usable.

        :raises Invalid: code and manifest do not fit together, or a tool cannot be told to a model
        :raises HomeAgentError: the kernel refused the plugin
        :raises Exception: whatever an ``on_start`` handler raised
        """
        check_against_manifest(self._plugin, self._manifest)
        calls = Calls(self._plugin, self._manifest.name, self._threads)
        if not self._data_dir.is_dir():  # asked first, since the first thread costs an idle plugin 300 KB for good
            await asyncio.to_thread(self._data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        self._plugin.enter(Surroundings(self._manifest.name, self._data_dir, self._peer))
        for verb in ("tool", "stage", "output"):
            self._peer.serve(f"{self._manifest.name}.{verb}", getattr(calls, verb))
        self._peer.on_welcome(self._on_welcome)
        self._running = asyncio.get_running_loop().create_future()
        self._announcer = asyncio.create_task(self._announce_for_ever(calls))
        try:
            await self._peer.start(self._welcome_timeout_s)
            await asyncio.shield(self._running)
        except BaseException:
            await self._end()
            raise

    async def wait_failed(self) -> None:
        """Return never, unless a later registration is refused: then raise its error."""
        if self._announcer is not None:
            await asyncio.shield(self._announcer)

    async def stop(self) -> None:
        """Run the ``on_stop`` handlers, last registered first, for at most 5 seconds, and leave the bus."""
        if self._has_started:
            try:
                async with asyncio.timeout(STOP_S):
                    await self._run_stop_hooks()
            except TimeoutError:
                self._plugin.log.warning("on_stop handlers took too long", limit_s=STOP_S)
        await self._end()

    async def _end(self) -> None:
        for subscription in self._subscriptions:
            with suppress(HomeAgentError):
                await subscription.cancel()
        self._subscriptions.clear()
        if self._announcer is not None:
            self._announcer.cancel()
            await asyncio.gather(self._announcer, return_exceptions=True)
        if self._running is not None and self._running.done() and not self._running.cancelled():
            self._running.exception()
        await self._peer.stop()
        self._threads.close()
        self._plugin.leave()

    async def _run_stop_hooks(self) -> None:
        for hook in reversed(self._plugin.stop_hooks):
            try:
                await hook()
            except Exception:
                self._plugin.log.exception("an on_stop handler failed", handler=hook.__name__)

    async def _on_welcome(self) -> None:
        self._welcomed.set()

    async def _announce_for_ever(self, calls: Calls) -> None:
        """Introduce the plugin after each welcome; ends only with an error that trying again cannot mend."""
        assert self._running is not None
        try:
            while True:
                await self._welcomed.wait()
                self._welcomed.clear()
                await self._announce(calls)
                if not self._running.done():
                    self._running.set_result(None)
        except Exception as error:
            if not self._running.done():
                self._running.set_exception(error)
                return
            raise

    async def _announce(self, calls: Calls) -> None:
        """Define settings, start the plugin if it has not been, register; again until the kernel listens."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._define_settings()
                await self._start_once()
                await self._peer.call("kernel.register", self._registration(calls), idempotent=True)
                return
            except _PASSING as error:
                self._plugin.log.info("the kernel is not ready yet", reason=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _define_settings(self) -> None:
        body = {"plugin": self._manifest.name, "definitions": [s.to_wire() for s in self._manifest.settings]}
        answer = await self._peer.call("kernel.define_settings", body, idempotent=True)
        self._plugin.settings.replace(answer["settings"])

    async def _start_once(self) -> None:
        if self._has_started:
            return
        self._has_started = True
        await self._subscribe("config.changed", self._on_config_changed)
        for hook in self._plugin.start_hooks:
            await _run_start_hook(hook)
        for topics, handler in self._plugin.event_handlers:
            await self._subscribe(topics, handler)

    async def _subscribe(self, topics: str, handler: EventHandler) -> None:
        try:
            self._subscriptions.append(await self._peer.subscribe([topics], handler))
        except HomeAgentError as error:
            self._plugin.log.warning("no events of a topic", topic=topics, reason=str(error))

    async def _on_config_changed(self, event: Event) -> None:
        keys = event.payload.get("keys", []) if isinstance(event.payload, dict) else []
        if event.topic != "config.changed" or any(key.startswith(f"plugin.{self._manifest.name}.") for key in keys):
            await self._define_settings()

    def _registration(self, calls: Calls) -> dict[str, object]:
        plugin = self._plugin
        return {
            "generation": self._generation,
            "tools": [tool.to_wire(calls.schemas[tool.name]) for tool in plugin.tools.values()],
            "stages": [stage.to_wire() for stage in plugin.stages.values()],
            "outputs": [output.to_wire() for output in plugin.outputs.values()],
            "inputs": [channel.to_wire() for channel in plugin.inputs.values()],
        }


class StartFailed(Exception):
    """Raised when an ``on_start`` handler failed; the cause is its own error."""


async def _run_start_hook(hook: object) -> None:
    """Run one handler; its errors are never taken for the kernel's, which would be tried again."""
    try:
        await hook()  # type: ignore[operator]
    except Exception as error:
        name = getattr(hook, "__name__", "on_start")
        raise StartFailed(f"{name} failed: {type(error).__name__}: {error}") from error


def check_against_manifest(plugin: Plugin, manifest: Manifest) -> None:
    """Raise :class:`Invalid` where the code does what the manifest does not say: people decide by the manifest."""
    granted = {grant.stage: grant.changes for grant in manifest.stages}
    for stage in plugin.stages.values():
        if stage.stage not in granted or not stage.changes <= granted[stage.stage]:
            wanted = {"stage": stage.stage, "changes": sorted(stage.changes)}
            raise Invalid(
                f"the code handles {stage.stage}, the manifest does not say so", hint=f"add {wanted} to stages"
            )
    for name in [*plugin.outputs, *plugin.inputs]:
        if name not in manifest.channels:
            raise Invalid(f"the code has the channel {name}, the manifest has not", hint=f"add {name!r} to channels")
    for topic, _ in plugin.event_handlers:
        if not any(_covers(granted_topic, topic) for granted_topic in manifest.topics):
            raise Invalid(f"the code listens to {topic}, the manifest does not say so", hint=f"add {topic!r} to topics")


def _covers(granted: str, topic: str) -> bool:
    return granted == topic or (granted.endswith("*") and topic.startswith(granted[:-1]))
