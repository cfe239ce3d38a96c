"""Plugins whose process lives but answers the kernel no more: they are killed, and so started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from homeagent_sdk.bus.abc import Event
from homeagent_sdk.catalogue import text
from plugin_host.supervised import SupervisedPlugin

GRACE_S = 10.0
"""How long a plugin that the kernel has given up may take to come back by itself."""

_log = structlog.get_logger("hung")


class HungPlugins:
    """Listens to ``peer.gone`` and ``peer.up``.

    :param find: returns the running plugin of a name
    """

    def __init__(self, find: Callable[[str], SupervisedPlugin | None], grace_s: float = GRACE_S) -> None:
        self._find = find
        self._grace_s = grace_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def on_event(self, event: Event) -> None:
        """Take an event of ``peer.*``."""
        name = event.payload.get("name") if isinstance(event.payload, dict) else None
        if not isinstance(name, str):
            return
        self._forget(name)
        plugin = self._find(name)
        if event.topic == "peer.gone" and plugin is not None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(self._grace_s, self._kill, name, plugin.generation)

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
