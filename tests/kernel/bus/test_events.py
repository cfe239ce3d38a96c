"""Events over real sockets: whatever the network drops comes back by replay, and nobody is slowed by anybody."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from homeagent_sdk.bus import Event, Peer
from homeagent_sdk.errors import Denied, Invalid
from kernel.bus import Hub
from tests.kernel.bus.conftest import KEYS, MakePeer, RawSocket, until


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    """A hub whose event socket holds little, so that a flood drops most of it."""
    monkeypatch.setattr("kernel.bus.hub._EVENTS_HIGH_WATER_MARK", 10)
    hub = Hub(tmp_path, KEYS)
    hub.start()
    yield hub
    hub.stop()


class Inbox:
    """A handler that keeps what it is given."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.events: list[Event] = []
        self.pause_s = pause_s

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self.pause_s:
            await asyncio.sleep(self.pause_s)

    @property
    def payloads(self) -> list[Any]:
        return [event.payload for event in self.events]


def flood(hub: Hub, count: int, topic: str = "turn.started", size: int = 0) -> None:
    """Publish in the hub's thread, as fast as it goes."""
    body = [msgpack.packb([number, "x" * size]) for number in range(count)]

    def publish() -> None:
        for payload in body:
            hub.publish(topic, payload)

    assert hub._loop is not None
    hub._loop.call_soon_threadsafe(publish)


async def test_events_arrive_with_topic_epoch_number_and_time(hub: Hub, make_peer: MakePeer) -> None:
    memory, provider, inbox = await make_peer("memory"), await make_peer("provider"), Inbox()
    await provider.subscribe(["memory.*"], inbox)
    await memory.publish("memory.appended", {"id": 1})
    await memory.publish("turn.started", {"id": 2})
    await memory.publish("memory.appended", {"id": 3})
    await until(lambda: len(inbox.events) == 2)
    first, second = inbox.events
    assert (first.topic, first.epoch, first.sequence, first.payload) == ("memory.appended", hub.epoch, 1, {"id": 1})
    assert (second.sequence, second.payload) == (2, {"id": 3})
    assert abs(first.time - time.time()) < 5


async def test_a_flooded_subscriber_gets_everything_once_and_in_order(hub: Hub, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.*"], inbox)
    flood(hub, 4000)
    time.sleep(0.2)  # noqa: ASYNC251 - the subscriber is frozen, which is the point
    await until(lambda: len(inbox.events) >= 4000, 15)
    assert [payload[0] for payload in inbox.payloads] == list(range(4000))
    assert [event.sequence for event in inbox.events] == list(range(1, 4001))


def only_some_get_through(hub: Hub, monkeypatch: pytest.MonkeyPatch, passes: Callable[[int], bool]) -> None:
    """Let the network lose all events whose number does not pass."""
    emit = hub._emit
    monkeypatch.setattr(hub, "_emit", lambda frames: emit(frames) if passes(msgpack.unpackb(frames[1])["n"]) else None)


async def test_a_gap_older_than_the_ring_is_one_loss_with_its_count_and_delivery_goes_on(
    hub: Hub, make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub._ring._max_events = 100
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    only_some_get_through(hub, monkeypatch, lambda number: number in (1, 3000, 3001))
    flood(hub, 3000)
    await until(lambda: inbox.events and inbox.events[-1].sequence == 3000, 15)
    assert [event.sequence for event in inbox.events] == [1, 0, *range(2901, 3001)]
    assert inbox.payloads[1] == {"topic": "turn.started", "count": 2899}
    await memory.publish("turn.started", "goes on")
    await until(lambda: inbox.payloads[-1] == "goes on")


async def test_in_a_flood_beyond_the_ring_every_event_is_delivered_or_counted_as_lost(
    hub: Hub, make_peer: MakePeer
) -> None:
    hub._ring._max_events = 100
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    flood(hub, 3000)
    while hub._ring.positions.get("turn.started") != 3000:
        time.sleep(0.01)  # noqa: ASYNC251 - the subscriber is frozen until the ring has turned over
    await until(lambda: inbox.events and inbox.events[-1].sequence == 3000, 15)
    expected = 1
    for event in inbox.events:
        if event.topic == "ring.lost":
            expected += event.payload["count"]
        else:
            assert event.sequence == expected
            expected += 1
    assert expected == 3001
    pairs = itertools.pairwise(event.topic for event in inbox.events)
    assert ("ring.lost", "ring.lost") not in pairs


async def test_a_lost_tail_is_noticed_by_heartbeat(
    hub: Hub, make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    only_some_get_through(hub, monkeypatch, lambda number: number == 0)
    flood(hub, 3)
    await until(lambda: len(inbox.events) == 3)
    assert [event.sequence for event in inbox.events] == [1, 2, 3]


async def test_a_frozen_subscriber_slows_neither_publisher_nor_others(
    hub: Hub, make_peer: MakePeer, raw_socket: RawSocket
) -> None:
    frozen = raw_socket("events", zmq.SUB, mark=1)
    frozen.subscribe("")
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    slow, slow_inbox = await make_peer("provider"), Inbox(pause_s=0.05)
    await slow.subscribe(["turn.started"], slow_inbox)
    flood(hub, 300, size=20_000)
    begun = time.monotonic()
    for _ in range(20):
        await memory.call("hub.positions", {"topics": ["turn.*"]}, timeout_s=2)
    assert (time.monotonic() - begun) / 20 < 0.1
    await until(lambda: len(inbox.events) == 300, 10)
    assert len(slow_inbox.events) < 300
    assert [payload[0] for payload in slow_inbox.payloads] == list(range(len(slow_inbox.events)))


async def test_a_late_joiner_hears_only_what_comes_after_it(hub: Hub, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    flood(hub, 50)
    await until(lambda: hub._ring.positions.get("turn.started") == 50)
    await memory.subscribe(["turn.*"], inbox)
    for topic in ("turn.started", "turn.finished"):
        await memory.publish(topic, "new")
    await until(lambda: len(inbox.events) == 2)
    assert [(event.topic, event.sequence) for event in inbox.events] == [("turn.started", 51), ("turn.finished", 1)]


async def test_a_cancelled_subscription_hears_nothing_and_others_go_on(hub: Hub, make_peer: MakePeer) -> None:
    memory, one, two = await make_peer("memory"), Inbox(), Inbox()
    first = await memory.subscribe(["turn.started"], one)
    await memory.subscribe(["turn.started"], two)
    await memory.publish("turn.started", 1)
    await until(lambda: len(one.events) == len(two.events) == 1)
    await first.cancel()
    await first.cancel()
    await memory.publish("turn.started", 2)
    await until(lambda: len(two.events) == 2)
    assert len(one.events) == 1


async def test_who_may_not_replay_cannot_subscribe_and_leaves_nothing_behind(hub: Hub, make_peer: MakePeer) -> None:
    rogue = await make_peer("rogue", "external")
    with pytest.raises(Denied):
        await rogue.subscribe(["turn.*"], Inbox())
    assert rogue._intake._subscriptions == []


async def test_the_hubs_own_topics_are_published_by_it_alone(hub: Hub, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["ring.*", "peer.*"], inbox)
    for topic in ("ring.heartbeat", "ring.lost", "peer.up"):
        with pytest.raises(Denied):
            await memory.call("hub.publish", {"topic": topic, "payload": b"\xc0"})
        await memory.publish(topic, {"name": "impostor"})
    provider = await make_peer("provider")
    await provider.stop()
    await until(lambda: len(inbox.events) == 2)
    assert [event.topic for event in inbox.events] == ["peer.up", "peer.gone"]
    assert {event.payload["name"] for event in inbox.events} == {"provider"}


async def test_an_event_that_does_not_fit_is_refused_where_it_is_made(hub: Hub, make_peer: MakePeer) -> None:
    memory = await make_peer("memory")
    with pytest.raises(Invalid, match="64 KiB"):
        await memory.publish("turn.started", "x" * 70_000)
    with pytest.raises(Invalid, match="not a topic"):
        await memory.publish("Turn Started")


async def test_a_payload_that_is_no_messagepack_costs_one_event_and_no_more(hub: Hub, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    await memory.publish("turn.started", 1)
    await memory.call("hub.publish", {"topic": "turn.started", "payload": b"\xc1"})
    await memory.publish("turn.started", 3)
    await until(lambda: len(inbox.events) == 3)
    assert inbox.payloads == [1, {"topic": "turn.started", "count": 1}, 3]


async def test_a_publisher_faster_than_the_hub_waits_instead_of_failing(hub: Hub, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await memory.subscribe(["turn.started"], inbox)
    await asyncio.gather(*(_publish_many(memory, 400) for _ in range(10)))
    await until(lambda: len(inbox.events) == 4000, 20)
    assert memory._uplink.dropped_messages == 0


async def _publish_many(peer: Peer, count: int) -> None:
    for number in range(count):
        await peer.publish("turn.started", {"number": number, "text": "x" * 1000})
