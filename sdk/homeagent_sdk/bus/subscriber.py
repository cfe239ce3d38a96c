"""Events of the ring, once and in order: gaps are seen by sequence number and filled by replay."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import Event, EventHandler
from homeagent_sdk.bus.context import detached
from homeagent_sdk.errors import HomeAgentError, Overloaded, TimedOut, Unavailable

QUEUE_LIMIT = 8192
"""Events that wait for a slow handler; later ones are fetched again by replay, or reported as lost."""
QUEUE_LIMIT_BYTES = 16 * 1024 * 1024
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.05, 2.0
_COMPLAIN_EVERY_S = 5.0
_log = structlog.get_logger("bus")

Replay = Callable[[str, int, int], Awaitable[dict[str, Any]]]
"""``replay(topic, after, up_to)`` asks the hub for events; see ``hub.replay`` in docs/protocol.md."""


class _NewEpoch:
    """Stands in the queue where the ring was replaced by a new one."""

    __slots__ = ("behind", "epoch")

    def __init__(self, epoch: str, behind: dict[str, int]) -> None:
        self.epoch = epoch
        self.behind = behind
        """How far the old ring's topics had come, as far as it was known."""


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
        self._epoch = ""
        self._newest_epoch = ""
        self._positions: dict[str, int] = {}
        self._queue: deque[tuple[Event | _NewEpoch, int]] = deque()
        self._queue_bytes = 0
        self._behind: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._is_cancelled = False
        self._complain_again_at = 0.0
        self.lost_events = 0
        """Events that the ring did not have any more when this subscription asked for them."""
        self._task = asyncio.create_task(self._deliver(), name="event-subscription", context=detached())

    def matches(self, topic: str) -> bool:
        """Tell whether a topic belongs to this subscription."""
        return any(topic == t or (t.endswith("*") and topic.startswith(t[:-1])) for t in self.topics)

    def position(self, epoch: str, positions: dict[str, int]) -> None:
        """Begin after the given sequence numbers: what came before belongs to the past."""
        self._positions.update((topic, number) for topic, number in positions.items() if self.matches(topic))
        self._epoch = self._newest_epoch = epoch
        self._wake.set()

    def restart(self, epoch: str) -> None:
        """Go over to a new ring, whose events are counted from 1, once what came of the old one is delivered."""
        if self._epoch and epoch != self._newest_epoch:
            self._newest_epoch = epoch
            self._queue.append((_NewEpoch(epoch, self._behind), 0))
            self._behind = {}
            self._wake.set()

    def take(self, event: Event, size_bytes: int = 0) -> None:
        """Accept a live event; one that does not fit in the queue is left to replay."""
        if len(self._queue) < QUEUE_LIMIT and self._queue_bytes + size_bytes <= QUEUE_LIMIT_BYTES:
            self._queue.append((event, size_bytes))
            self._queue_bytes += size_bytes
            self._wake.set()
        else:
            self.take_position(event.topic, event.sequence)

    def take_position(self, topic: str, number: int) -> None:
        """Learn how far a topic has come, so that the loss of its last event is noticed."""
        if self.matches(topic):
            self._behind[topic] = max(number, self._behind.get(topic, 0))
            self._wake.set()

    async def cancel(self) -> None:
        """Stop delivery; safe to call twice, and from the handler."""
        self._is_cancelled = True
        self._on_cancel(self)
        if asyncio.current_task() is not self._task:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)

    async def _deliver(self) -> None:
        while not self._is_cancelled:
            await self._wake.wait()
            self._wake.clear()
            if not self._epoch:
                continue
            while self._queue and not self._is_cancelled:
                entry, size_bytes = self._queue.popleft()
                self._queue_bytes -= size_bytes
                if isinstance(entry, _NewEpoch):
                    await self._change_epoch(entry)
                else:
                    await self._deliver_event(entry)
            for topic, number in list(self._behind.items()):
                if self._queue:
                    self._wake.set()  # what lies behind a change of epoch counts in the new one
                    break
                self._behind.pop(topic, None)
                await self._catch_up(topic, number)

    async def _deliver_event(self, event: Event) -> None:
        if event.epoch != self._epoch:
            return  # of the new ring, but ahead of its announcement: replay brings it back
        await self._catch_up(event.topic, event.sequence - 1)
        if event.sequence > self._positions.get(event.topic, 0):
            self._positions[event.topic] = event.sequence
            await self._hand_over(event)

    async def _change_epoch(self, entry: _NewEpoch) -> None:
        for topic, number in entry.behind.items():
            await self._lose_up_to(topic, number)
        self._positions.clear()
        self._epoch = entry.epoch
        await self._hand_over(Event("ring.epoch", entry.epoch, 0, time.time(), {"epoch": entry.epoch}))

    async def _catch_up(self, topic: str, up_to: int) -> None:
        """Deliver everything of a topic up to a number, by replay; what the ring has no more is reported as lost."""
        while (after := self._positions.get(topic, 0)) < up_to and not self._is_cancelled:
            answer = await self._ask_for(topic, after, up_to)
            lost, events = (int(answer["lost"]), answer["events"]) if answer else (up_to - after, [])
            if lost or not events:
                await self._lose_up_to(topic, after + (lost or up_to - after))
            for number, when, body in events:
                await self._deliver_replayed(topic, number, when, body)

    async def _deliver_replayed(self, topic: str, number: int, when: float, body: bytes) -> None:
        try:
            payload = wire.decode_body([body])
        except wire.Malformed as error:
            _log.error("an event cannot be read", topic=topic, sequence=number, reason=str(error))
            await self._lose_up_to(topic, number)
            return
        self._positions[topic] = number
        await self._hand_over(Event(topic, self._epoch, number, when, payload))

    async def _lose_up_to(self, topic: str, number: int) -> None:
        count = number - self._positions.get(topic, 0)
        if count > 0:
            self._positions[topic] = number
            self.lost_events += count
            self._complain(topic)
            await self._hand_over(Event("ring.lost", self._epoch, 0, time.time(), {"topic": topic, "count": count}))

    def _complain(self, topic: str) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._complain_again_at:
            self._complain_again_at = now + _COMPLAIN_EVERY_S
            _log.warning("events are lost", topic=topic, total=self.lost_events)

    async def _ask_for(self, topic: str, after: int, up_to: int) -> dict[str, Any] | None:
        """Return the hub's replay; None when there is none to be had, since the ring is gone or refuses it."""
        pause_s = _FIRST_RETRY_S
        while self._newest_epoch == self._epoch:
            try:
                answer = await self._replay(topic, after, up_to)
                return answer if answer["epoch"] == self._epoch else None
            except (Unavailable, TimedOut, Overloaded) as error:
                _log.info("replay is tried again", topic=topic, after=after, up_to=up_to, reason=str(error))
            except HomeAgentError as error:
                _log.error("replay was refused", topic=topic, after=after, up_to=up_to, reason=str(error))
                return None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_RETRY_S)
        return None

    async def _hand_over(self, event: Event) -> None:
        if self._is_cancelled:
            return
        try:
            await self._handler(event)
        except asyncio.CancelledError:
            if self._is_cancelled or self._task.cancelling():
                raise
            _log.exception("event handler was cancelled from within", topic=event.topic, sequence=event.sequence)
        except Exception:
            _log.exception("event handler failed", topic=event.topic, sequence=event.sequence)
