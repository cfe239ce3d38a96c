"""Events of the ring, once and in order: gaps are seen by sequence number and filled by replay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import Event, EventHandler
from homeagent_sdk.errors import HomeAgentError

QUEUE_LIMIT = 8192
"""Events that wait for a slow handler; older ones are fetched again by replay, or reported as lost."""
HEARTBEAT = "ring.heartbeat"
_log = structlog.get_logger("bus")

Replay = Callable[[str, int, int], Awaitable[dict[str, Any]]]
"""``replay(topic, after, up_to)`` asks the hub for events; see ``hub.replay`` in docs/protocol.md."""


class EventSubscription:
    """One subscription: keeps the position in each topic and delivers to one handler, one event at a time."""

    def __init__(
        self,
        topics: Iterable[str],
        handler: EventHandler,
        replay: Replay,
        on_cancel: Callable[[EventSubscription], None],
    ) -> None:
        self.topics = tuple(topics)
        self._handler = handler
        self._replay = replay
        self._on_cancel = on_cancel
        self._positions: dict[str, int] = {}
        self._queue: deque[Event] = deque()
        self._behind: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._is_positioned = False
        self._task = asyncio.create_task(self._deliver(), name="event-subscription")

    def matches(self, topic: str) -> bool:
        """Tell whether a topic belongs to this subscription."""
        return any(topic == t or (t.endswith("*") and topic.startswith(t[:-1])) for t in self.topics)

    def position(self, positions: dict[str, int]) -> None:
        """Begin after the given sequence numbers: what came before belongs to the past."""
        for topic, number in positions.items():
            if self.matches(topic):
                self._positions[topic] = number
        self._is_positioned = True
        self._wake.set()

    def restart(self, epoch: str) -> None:
        """Forget all positions: the ring is a new one, whose events are counted from 1."""
        self._positions.clear()
        self._behind.clear()
        self._queue.clear()
        self._queue.append(Event("ring.epoch", epoch, 0, 0.0, {"epoch": epoch}))
        self._wake.set()

    def take(self, event: Event) -> None:
        """Accept a live event; one that does not fit in the queue is left to replay."""
        if len(self._queue) < QUEUE_LIMIT:
            self._queue.append(event)
        else:
            self.take_position(event.topic, event.sequence)
        self._wake.set()

    def take_position(self, topic: str, number: int) -> None:
        """Learn how far a topic has come, so that the loss of its last event is noticed."""
        if self.matches(topic):
            self._behind[topic] = max(number, self._behind.get(topic, 0))
            self._wake.set()

    async def cancel(self) -> None:
        """Stop delivery; safe to call twice."""
        self._on_cancel(self)
        self._task.cancel()

    async def _deliver(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._is_positioned:
                continue
            while self._queue:
                event = self._queue.popleft()
                if event.sequence == 0:
                    await self._hand_over(event)
                    continue
                await self._catch_up(event.topic, event.sequence - 1)
                if event.sequence > self._positions.get(event.topic, 0):
                    self._positions[event.topic] = event.sequence
                    await self._hand_over(event)
            for topic, number in list(self._behind.items()):
                del self._behind[topic]
                await self._catch_up(topic, number)

    async def _catch_up(self, topic: str, up_to: int) -> None:
        while (after := self._positions.get(topic, 0)) < up_to:
            try:
                answer = await self._replay(topic, after, up_to)
            except HomeAgentError as error:
                _log.warning("replay failed", topic=topic, after=after, up_to=up_to, error=str(error))
                return
            lost = int(answer["lost"])
            if lost:
                self._positions[topic] = after + lost
                await self._hand_over(Event("ring.lost", answer["epoch"], 0, 0.0, {"topic": topic, "count": lost}))
            for number, time, body in answer["events"]:
                self._positions[topic] = number
                await self._hand_over(Event(topic, answer["epoch"], number, time, wire.decode_body([body])))
            if not lost and not answer["events"]:
                return

    async def _hand_over(self, event: Event) -> None:
        try:
            await self._handler(event)
        except Exception:
            _log.exception("event handler failed", topic=event.topic, sequence=event.sequence)
