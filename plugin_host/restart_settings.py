"""The two settings of the plugin host, read from the kernel."""

from __future__ import annotations

from typing import Any

from homeagent_sdk.bus.abc import BusPeer, Event
from homeagent_sdk.errors import HomeAgentError, Invalid
from homeagent_sdk.logging import get_logger
from homeagent_sdk.plugin.durations import parse_duration
from plugin_host.crash_policy import RestartLimit

RESTART_LIMIT = "core.plugin.restart_limit"
RESTART_WINDOW = "core.plugin.restart_window"
_log = get_logger("settings")


class RestartSettings:
    """Keeps a :class:`RestartLimit` at what the kernel says; where it says nothing, at its defaults."""

    def __init__(self, peer: BusPeer, limit: RestartLimit) -> None:
        self._peer = peer
        self._limit = limit

    def concerns(self, event: Event) -> bool:
        """Tell whether an event of ``config.changed``, or the loss of some, may have changed them."""
        if event.topic != "config.changed" or not isinstance(event.payload, dict):
            return True
        return not {RESTART_LIMIT, RESTART_WINDOW}.isdisjoint(event.payload.get("keys", ()))

    async def read(self) -> None:
        """Ask the kernel for both."""
        count = await self._get(RESTART_LIMIT)
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 1000:
            self._limit.restarts = count
        window = await self._get(RESTART_WINDOW)
        if window is not None:
            try:
                self._limit.window_s = parse_duration(window)
            except Invalid as error:
                _log.warning("a setting cannot be used", key=RESTART_WINDOW, reason=str(error))

    async def _get(self, key: str) -> Any:
        try:
            entry = await self._peer.call("kernel.config_get", {"key": key}, timeout_s=10, idempotent=True)
        except HomeAgentError as error:
            _log.info("a setting keeps its value", key=key, reason=str(error))
            return None
        return entry.get("value")
