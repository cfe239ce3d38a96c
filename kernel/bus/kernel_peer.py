"""The kernel's own peer: on the bus like any other, but its events need no message to reach the ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homeagent_sdk.bus import Peer, wire
from kernel.bus.hub import Hub


class KernelPeer(Peer):
    """A peer in the hub's process."""

    def __init__(self, hub: Hub, run_dir: Path) -> None:
        super().__init__(run_dir, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
        self._hub = hub

    async def publish(self, topic: str, payload: Any = None) -> None:
        """Put an event on the ring.

        :raises Invalid: the topic is none, or the event is larger than an event may be
        """
        self._hub.publish_soon(topic, wire.encode_event(topic, payload))
