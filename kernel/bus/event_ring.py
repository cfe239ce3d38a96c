"""The event ring: the last events of every topic, numbered, so that a subscriber sees what it missed, and asks."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

import msgpack

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import Invalid, Overloaded

MAX_EVENTS = 8192
MAX_BYTES = 16 * 1024 * 1024
MAX_TOPICS = 1024
REPLAY_EVENTS = 256
REPLAY_BYTES = 256 * 1024


class StoredEvent(NamedTuple):
    """One event as the ring keeps it: number in its topic, wall-clock time, packed payload."""

    number: int
    time: float
    body: bytes


class EventRing:
    """Keeps the last ``max_events`` events or ``max_bytes`` of payload, whichever is less; the oldest goes first."""

    def __init__(self, epoch: str, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self.epoch = epoch
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._topics: dict[str, deque[StoredEvent]] = {}
        self._numbers: dict[str, int] = {}
        self._order: deque[str] = deque()
        self._bytes = 0
        self.evicted = 0

    @property
    def positions(self) -> dict[str, int]:
        """The number of the newest event of each topic."""
        return self._numbers

    def append(self, topic: str, body: bytes) -> list[bytes]:
        """Store an event and return the frames to publish: topic, header, payload.

        :raises Invalid: the topic is not a name, or the payload is empty or too large
        :raises Overloaded: there are too many topics already
        """
        if not wire.is_topic(topic):
            raise Invalid(f"{topic[:80]!r} is not a topic", field="topic", hint="topics look like turn.started")
        if not 0 < len(body) <= wire.MAX_EVENT_BYTES:
            raise Invalid(f"an event of {len(body)} bytes on {topic}", field="payload", hint="at most 64 KiB")
        if topic not in self._numbers and len(self._numbers) >= MAX_TOPICS:
            raise Overloaded(f"the ring has {MAX_TOPICS} topics already", field="topic")
        number = self._numbers[topic] = self._numbers.get(topic, 0) + 1
        event = StoredEvent(number, time.time(), body)
        self._topics.setdefault(topic, deque()).append(event)
        self._order.append(topic)
        self._bytes += len(body)
        while len(self._order) > self._max_events or self._bytes > self._max_bytes:
            self._evict()
        return self._frames(topic, event)

    def replay(self, topic: str, after: int, up_to: int) -> dict[str, Any]:
        """Return events of a topic with numbers in ``(after, up_to]``, oldest first, as many as fit in one answer.

        ``lost`` counts those at the beginning of the range that the ring no longer holds.
        """
        after, up_to = max(after, 0), min(up_to, self._numbers.get(topic, 0))
        kept = self._topics.get(topic, ())
        first = kept[0].number if kept else self._numbers.get(topic, 0) + 1
        lost = max(0, min(first - 1, up_to) - after)
        events: list[list[Any]] = []
        size = 0
        for event in islice(kept, max(0, after + 1 - first), None):
            size += len(event.body)
            if event.number > up_to or (events and (len(events) >= REPLAY_EVENTS or size > REPLAY_BYTES)):
                break
            events.append(list(event))
        return {"epoch": self.epoch, "lost": lost, "events": events}

    def heartbeat(self) -> list[bytes]:
        """Return the frames that tell every subscriber how far each topic has come."""
        return self._frames("ring.heartbeat", StoredEvent(0, time.time(), msgpack.packb(self._numbers)))

    def counts(self) -> dict[str, int]:
        """Return how full the ring is."""
        return {"events": len(self._order), "bytes": self._bytes, "topics": len(self._numbers), "evicted": self.evicted}

    def _evict(self) -> None:
        event = self._topics[self._order.popleft()].popleft()
        self._bytes -= len(event.body)
        self.evicted += 1

    def _frames(self, topic: str, event: StoredEvent) -> list[bytes]:
        header = {
            "v": wire.PROTOCOL,
            "k": wire.EVENT,
            "m": topic,
            "n": event.number,
            "e": self.epoch,
            "s": event.time,
        }
        return [topic.encode(), msgpack.packb(header), event.body]
