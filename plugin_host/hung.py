"""Plugins whose process lives but answers the kernel no more: they are killed, and so started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from homeagent_sdk.bus.abc import Event
from homeagent_sdk.catalogue import text
from homeagent_sdk.logging import get_logger
from plugin_host.supervised import SupervisedPlugin

GRACE_S = 10.0
"""How long a plugin that the kernel has given up may take to come back by itself."""

_log = get_logger("hung")


class HungPlugins:
    """Listens to ``peer.gone`` and ``peer.up``.

    :param find: returns the running plugin of a name
    """

    def __init__(self, find: Callable[[str], SupervisedPlugin | None], grace_s: float = GRACE_S) -> None:
        self._find = find
        self._grace_s = grace_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def on_event(self, event: Event) -> None:
        """Take an event of ``peer.*``; those of earlier processes of the plugin, which may come late, mean nothing."""
        if not isinstance(event.payload, dict):
            return
        plugin = self._find(str(event.payload.get("name")))
        if plugin is None or event.payload.get("generation", plugin.generation) != plugin.generation:
            return
        self._forget(plugin.name)
        if event.topic == "peer.gone":
            loop = asyncio.get_running_loop()
            self._timers[plugin.name] = loop.call_later(self._grace_s, self._kill, plugin.name, plugin.generation)

    def stop(self) -> None:
        """Forget all."""
        for name in list(self._timers):
            self._forget(name)

    def _forget(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _kill(self, name: str, generation: int) -> None:
        self._timers.pop(name, None)
        plugin = self._find(name)
        if plugin is not None and plugin.generation == generation:
            _log.warning("plugin hangs and is killed", plugin=name, pid=plugin.pid)
            plugin.kill(text("host.hung"))
