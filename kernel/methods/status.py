"""kernel.status: what runs, what is missing, how much is going on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from homeagent_sdk import __version__
from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import HomeAgentError
from kernel.channels import ChannelRegistry
from kernel.journal import Journal
from kernel.turns.lanes import Lanes, Slots

SERVICES: Final = {"memory": "memory_service", "provider": "provider_service", "host": "plugin_host"}
"""Peer → the service as people know it."""
_ASK_TIMEOUT_S: Final = 2.0


class StatusMethods:
    """Answers kernel.status.

    :param peer_state: state of a peer on the bus, or None where it is not there
    """

    def __init__(
        self,
        bus: BusPeer,
        journal: Journal,
        lanes: Lanes,
        slots: Slots,
        channels: ChannelRegistry,
        peer_state: Callable[[str], str | None],
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._lanes = lanes
        self._slots = slots
        self._channels = channels
        self._peer_state = peer_state
        self._started_at = time.time()

    def serve(self, bus: BusPeer) -> None:
        """Answer the method."""
        bus.serve("kernel.status", self.status)

    async def status(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return the state of everything."""
        services, plugins, counts = await asyncio.gather(self._services(), self._plugins(), self._journal.counts())
        is_ready = all(each["state"] == "running" for each in services) and all(
            each["state"] in ("running", "disabled") for each in plugins
        )
        return {
            "version": __version__,
            "epoch": self._bus.epoch,
            "started_at": self._started_at,
            "ready": is_ready and bool(plugins),
            "services": services,
            "plugins": plugins,
            "turns": {
                "running": self._slots.running,
                "waiting": self._lanes.waiting,
                "finished": counts.finished,
                "unfinished": counts.unfinished,
                "unremembered": counts.unremembered,
            },
            "channels": sorted(each.name for each in self._channels.outputs()),
        }

    async def _services(self) -> list[dict[str, Any]]:
        rows = [{"name": "kernel", "state": "running", "detail": ""}]
        for peer, name in SERVICES.items():
            state = self._peer_state(peer) or "restarting"
            rows.append({"name": name, "state": state, "detail": ""})
        return rows

    async def _plugins(self) -> list[dict[str, Any]]:
        if self._peer_state("host") != "running":
            return []
        try:
            answer = await self._bus.call("host.plugins", timeout_s=_ASK_TIMEOUT_S)
        except HomeAgentError as error:
            return [{"name": "plugin_host", "state": "unknown", "detail": str(error)}]
        return [
            {"name": each["name"], "state": each["state"], "detail": each.get("reason") or ""}
            for each in answer["plugins"]
        ]
