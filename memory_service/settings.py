"""The memory's own settings: read from the kernel at each welcome, and again whenever one was changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from homeagent_sdk.bus.abc import BusPeer, Event
from homeagent_sdk.errors import HomeAgentError

PREFIX: Final = "core.memory."
_log = structlog.get_logger("memory_settings")

Values = dict[str, Any]
Changed = Callable[[Values], Awaitable[None]]


class Settings:
    """Tells the parts of the memory what is set, once it is known; until the kernel was there, nothing is.

    :param prefix: whose settings these are
    """

    def __init__(self, peer: BusPeer, prefix: str = PREFIX) -> None:
        self._peer = peer
        self._prefix = prefix
        self._told: list[Changed] = []
        self._values: Values = {}
        self._is_subscribed = False

    def on_change(self, told: Changed) -> None:
        """Call ``told`` with all values, by their keys: at the first welcome, and when one has changed."""
        self._told.append(told)

    def serve(self) -> None:
        """Begin; call it before the peer starts."""
        self._peer.on_welcome(self._welcomed)

    async def _welcomed(self) -> None:
        if not self._is_subscribed:
            await self._peer.subscribe(["config.changed"], self._changed)
            self._is_subscribed = True
        await self._read()

    async def _changed(self, event: Event) -> None:
        # Where events were lost one cannot know what they were about.
        keys = event.payload.get("keys", []) if event.topic == "config.changed" else [self._prefix]
        if any(key.startswith(self._prefix) for key in keys):
            await self._read()

    async def _read(self) -> None:
        try:
            answer = await self._peer.call("kernel.config_list", {"prefix": self._prefix})
        except HomeAgentError as error:
            _log.warning("settings not read: they stay as they are", reason=str(error))
            return
        values = {entry["key"]: entry["value"] for entry in answer["entries"]}
        if values != self._values:
            self._values = values
            for told in self._told:
                await told(values)
