"""A subscription delivers every event once and in order, or says what is lost. No sockets; a ring made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from homeagent_sdk.bus import Event
from homeagent_sdk.bus.subscriber import QUEUE_LIMIT, EventSubscription
from homeagent_sdk.errors import Denied, HomeAgentError, Unavailable


class Ring:
    """A ring for one topic, as far as a subscription sees it."""

    def __init__(self) -> None:
        self.epoch = "one"
        self.first = 1
        self.newest = 0
        self.replays = 0
        self.errors: list[HomeAgentError] = []
        self.seen: list[Any] = []
        self.hold: asyncio.Event | None = None
        self.fail_on: set[int] = set()
        self.subscription = EventSubscription(["turn.*"], self._take, self._replay, lambda subscription: None)

    async def _take(self, event: Event) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if event.topic.startswith("ring."):
            self.seen.append((event.topic, event.payload.get("count", event.payload.get("epoch"))))
        else:
            self.seen.append(event.payload)
        if event.sequence in self.fail_on:
            raise ZeroDivisionError

    async def _replay(self, topic: str, after: int, up_to: int) -> dict[str, Any]:
        self.replays += 1
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        up_to = min(up_to, self.newest)
        lost = max(0, min(self.first - 1, up_to) - after)
        numbers = range(after + lost + 1, min(up_to, after + lost + 10) + 1)
        return {
            "epoch": self.epoch,
            "lost": lost,
            "events": [[number, 0.0, msgpack.packb(number)] for number in numbers],
        }

    def live(self, *numbers: int) -> None:
        for number in numbers:
            self.newest = max(self.newest, number)
            self.subscription.take(Event("turn.started", self.epoch, number, 0.0, number), 10)

    def heartbeat(self) -> None:
        self.subscription.take_position("turn.started", self.newest)

    async def settle(self) -> list[Any]:
        for _ in range(300):
            await asyncio.sleep(0)
        return self.seen


@pytest.fixture
async def ring() -> AsyncIterator[Ring]:
    ring = Ring()
    yield ring
    await ring.subscription.cancel()


async def test_live_events_come_in_order(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1, 2, 3)
    assert await ring.settle() == [1, 2, 3]
    assert ring.replays == 0


async def test_a_late_joiner_gets_what_comes_after_its_position(ring: Ring) -> None:
    ring.live(8, 9)
    assert await ring.settle() == []
    ring.subscription.position("one", {"turn.started": 8, "other.topic": 99})
    ring.live(10)
    assert await ring.settle() == [9, 10]


async def test_a_gap_is_filled_and_nothing_comes_twice(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1, 30, 29, 31, 31, 2)
    assert await ring.settle() == list(range(1, 32))


async def test_a_gap_older_than_the_ring_is_one_loss_with_its_count(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1)
    ring.first = 21
    ring.live(50, 51)
    assert await ring.settle() == [1, ("ring.lost", 19), *range(21, 52)]


async def test_a_heartbeat_brings_back_a_lost_tail(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1)
    ring.newest = 5
    ring.heartbeat()
    assert await ring.settle() == [1, 2, 3, 4, 5]
    ring.heartbeat()
    ring.subscription.take_position("memory.appended", 7)
    assert await ring.settle() == [1, 2, 3, 4, 5]


async def test_a_slow_handler_loses_nothing_that_the_ring_has(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.hold = asyncio.Event()
    ring.live(*range(1, QUEUE_LIMIT + 500))
    assert len(ring.subscription._queue) <= QUEUE_LIMIT
    ring.hold.set()
    for _ in range(100):
        await ring.settle()
    assert ring.seen == list(range(1, QUEUE_LIMIT + 500))


async def test_the_queue_is_bounded_by_bytes(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.hold = asyncio.Event()
    for number in range(1, 400):
        ring.newest = number
        ring.subscription.take(Event("turn.started", "one", number, 0.0, number), 64 * 1024)
    assert len(ring.subscription._queue) <= 256
    ring.hold.set()
    await ring.settle()
    assert await ring.settle() == list(range(1, 400))


async def test_a_replay_that_fails_is_tried_again(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homeagent_sdk.bus.subscriber._FIRST_RETRY_S", 0.001)
    ring.subscription.position("one", {})
    ring.errors = [Unavailable("gone"), Unavailable("gone")]
    ring.live(3)
    async with asyncio.timeout(2):
        while len(ring.seen) < 3:  # noqa: ASYNC110 - pauses of a millisecond lie between
            await asyncio.sleep(0.001)
    assert ring.seen == [1, 2, 3]


async def test_a_replay_that_is_refused_is_a_loss_and_delivery_goes_on(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.errors = [Denied("not for you")]
    ring.live(3, 4)
    assert await ring.settle() == [("ring.lost", 2), 3, 4]


async def test_a_handler_that_fails_gets_the_next_event_all_the_same(ring: Ring) -> None:
    ring.fail_on = {2}
    ring.subscription.position("one", {})
    ring.live(1, 2, 3)
    assert await ring.settle() == [1, 2, 3]


async def test_a_new_epoch_is_told_and_counts_from_one(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1, 2)
    ring.subscription.restart("two")
    ring.epoch, ring.newest = "two", 0
    ring.live(1, 2)
    assert await ring.settle() == [1, 2, ("ring.epoch", "two"), 1, 2]


async def test_what_the_old_ring_still_owed_is_a_loss(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(1)
    await ring.settle()
    ring.hold = asyncio.Event()
    ring.live(5)
    ring.subscription.take_position("turn.started", 9)
    ring.subscription.restart("two")
    ring.epoch, ring.newest, ring.first = "two", 0, 1
    ring.live(1)
    ring.hold.set()
    assert await ring.settle() == [1, ("ring.lost", 3), 5, ("ring.lost", 4), ("ring.epoch", "two"), 1]


async def test_an_event_ahead_of_its_epoch_is_fetched_once_the_epoch_is_known(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.epoch = "two"
    ring.live(1)
    assert await ring.settle() == []
    ring.subscription.restart("two")
    ring.live(2)
    assert await ring.settle() == [("ring.epoch", "two"), 1, 2]


async def test_a_replay_out_of_another_ring_is_not_taken_for_this_one(ring: Ring) -> None:
    ring.subscription.position("one", {})
    ring.live(3)
    ring.epoch = "two"
    assert await ring.settle() == [("ring.lost", 2), 3]


async def test_an_epoch_that_is_not_new_changes_nothing(ring: Ring) -> None:
    ring.subscription.restart("one")
    ring.subscription.position("one", {})
    ring.live(1)
    ring.subscription.restart("one")
    ring.live(2)
    assert await ring.settle() == [1, 2]


async def test_a_handler_may_cancel_its_own_subscription() -> None:
    seen = []

    async def once(event: Event) -> None:
        seen.append(event.payload)
        await subscription.cancel()
        await asyncio.sleep(0)
        seen.append("to the end")

    async def replay(topic: str, after: int, up_to: int) -> dict[str, Any]:
        raise AssertionError

    subscription = EventSubscription(["turn.*"], once, replay, lambda subscription: None)
    subscription.position("one", {})
    for number in (1, 2):
        subscription.take(Event("turn.started", "one", number, 0.0, number))
    await asyncio.wait_for(subscription._task, 1)
    assert seen == [1, "to the end"]
    await subscription.cancel()


async def test_an_event_that_cannot_be_read_is_lost_alone(ring: Ring) -> None:
    ring.subscription.position("one", {})
    plain = ring.subscription._replay

    async def replay(topic: str, after: int, up_to: int) -> dict[str, Any]:
        answer = await plain(topic, after, up_to)
        answer["events"] = [[n, when, b"\xc1" if n == 2 else body] for n, when, body in answer["events"]]
        return answer

    ring.subscription._replay = replay
    ring.live(3)
    assert await ring.settle() == [1, ("ring.lost", 1), 3]
