"""The methods that the hub itself answers: ``hub.*``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from homeagent_sdk.errors import Denied, Invalid, Overloaded
from kernel.bus.event_ring import EventRing
from kernel.bus.lag import measure_lag
from kernel.bus.peers import RemotePeer
from kernel.bus.switchboard import Switchboard

RESERVED_TOPICS: Final = ("ring.", "peer.")
"""Only the hub publishes on these."""
MAX_LAG_S: Final = 60.0
MAX_POSITION_TOPICS: Final = 64

Later = Callable[[Callable[[Any], None]], None]


class HubMethods:
    """Answers ``hub.*``. The table of rights has been asked before.

    :param publish: puts an event on the ring and sends it out: ``publish(topic, packed payload)``
    :param dropped_events: tells how many events of the kernel's own did not reach the ring
    """

    def __init__(
        self,
        switchboard: Switchboard,
        ring: EventRing,
        publish: Callable[[str, bytes], None],
        dropped_events: Callable[[], int] = lambda: 0,
    ) -> None:
        self._switchboard = switchboard
        self._dropped_events = dropped_events
        self._ring = ring
        self._publish = publish
        self._lag: asyncio.Task[dict[str, Any]] | None = None
        self._by_name: dict[str, Callable[[Any], Any]] = {
            "hub.publish": self._on_publish,
            "hub.replay": self._on_replay,
            "hub.positions": self._on_positions,
            "hub.peers": self._on_peers,
            "hub.stats": self._on_stats,
            "hub.lag": self._on_lag,
            "hub.mint_token": self._on_mint_token,
        }

    @property
    def names(self) -> frozenset[str]:
        """The methods that are answered here."""
        return frozenset(self._by_name)

    def answer(self, peer: RemotePeer, method: str, body: Any) -> Any:
        """Return the reply, or a callable that takes a function to reply with later.

        :raises HomeAgentError: the call cannot be answered
        :raises KeyError, TypeError, ValueError: the body does not fit
        """
        handler = self._by_name.get(method)
        if handler is None:
            raise Invalid(f"the hub has no method {method}")
        return handler(body)

    def _on_publish(self, body: Any) -> None:
        topic, payload = body["topic"], body["payload"]
        if not isinstance(topic, str) or not isinstance(payload, bytes):
            raise Invalid("an event has a topic, a text, and a payload, which is bytes: packed MessagePack")
        if topic.startswith(RESERVED_TOPICS):
            raise Denied(f"{topic[:80]} is published by the hub alone", field="topic")
        self._publish(topic, payload)

    def _on_replay(self, body: Any) -> dict[str, Any]:
        return self._ring.replay(str(body["topic"]), int(body["after"]), int(body["up_to"]))

    def _on_positions(self, body: Any) -> dict[str, Any]:
        topics = [str(topic) for topic in body["topics"]]
        if len(topics) > MAX_POSITION_TOPICS:
            raise Invalid(f"{len(topics)} topics; at most {MAX_POSITION_TOPICS}", field="topics", hint="use a prefix")
        matching = {
            topic: number
            for topic, number in self._ring.positions.items()
            if any(topic == t or (t.endswith("*") and topic.startswith(t[:-1])) for t in topics)
        }
        return {"epoch": self._ring.epoch, "positions": matching}

    def _on_peers(self, body: Any) -> dict[str, Any]:
        return {"peers": [peer.describe() for peer in self._switchboard.peers]}

    def _on_stats(self, body: Any) -> dict[str, Any]:
        return {
            "epoch": self._switchboard.epoch,
            "counters": {**self._switchboard.counters, "events_dropped": self._dropped_events()},
            "calls_under_way": len(self._switchboard.routes),
            "calls_parked": self._switchboard.parked,
            "ring": self._ring.counts(),
        }

    def _on_mint_token(self, body: Any) -> dict[str, Any]:
        generation, pid = int(body["generation"]), int(body.get("pid", 0))
        return {"token": self._switchboard.admission.mint(str(body["name"]), generation, str(body["tier"]), pid)}

    def _on_lag(self, body: Any) -> Later:
        """Measure for some seconds; one measurement at a time, since two would see each other."""
        seconds = min(max(float((body or {}).get("seconds", 1.0)), 0.1), MAX_LAG_S)
        if self._lag is not None and not self._lag.done():
            raise Overloaded("the lag is being measured already", hint="try again when that is done")
        task = self._lag = asyncio.get_running_loop().create_task(measure_lag(seconds), name="hub-lag")

        def later(reply: Callable[[Any], None]) -> None:
            task.add_done_callback(lambda done: None if done.cancelled() else reply(done.result()))

        return later
