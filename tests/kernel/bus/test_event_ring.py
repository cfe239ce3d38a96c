"""The ring itself: numbers, bounds, replay."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import Invalid, Overloaded
from kernel.bus.event_ring import MAX_TOPICS, REPLAY_BYTES, REPLAY_EVENTS, EventRing


def numbers(answer: dict[str, object]) -> list[int]:
    return [event[0] for event in answer["events"]]  # type: ignore[attr-defined]


def test_numbers_count_within_a_topic_from_one() -> None:
    ring = EventRing("e")
    for topic in ("turn.started", "stage", "turn.started"):
        frames = ring.append(topic, b"\xc0")
    assert ring.positions == {"turn.started": 2, "stage": 1}
    header = wire.decode_header(frames[1])
    assert (frames[0], header["k"], header["m"], header["n"], header["e"]) == (
        b"turn.started",
        "event",
        "turn.started",
        2,
        "e",
    )


def test_the_oldest_go_first_whatever_their_topic() -> None:
    ring = EventRing("e", max_events=3)
    for topic in ("a", "b", "a", "b", "a"):
        ring.append(topic, b"\xc0")
    assert ring.counts() == {"events": 3, "bytes": 3, "topics": 2, "evicted": 2}
    assert numbers(ring.replay("a", 0, 99)) == [2, 3]
    assert ring.replay("a", 0, 99)["lost"] == 1
    assert ring.replay("b", 0, 99) == {"epoch": "e", "lost": 1, "events": [ring.replay("b", 1, 2)["events"][0]]}


def test_bytes_are_bounded_too() -> None:
    ring = EventRing("e", max_bytes=1000)
    for _ in range(10):
        ring.append("a", b"x" * 300)
    assert ring.counts()["bytes"] <= 1000
    assert numbers(ring.replay("a", 0, 99)) == [8, 9, 10]


def test_a_replay_is_limited_and_goes_on_where_it_stopped() -> None:
    ring = EventRing("e")
    for _ in range(REPLAY_EVENTS + 10):
        ring.append("a", b"\xc0")
    first = numbers(ring.replay("a", 0, 10_000))
    assert first == list(range(1, REPLAY_EVENTS + 1))
    assert numbers(ring.replay("a", first[-1], 10_000)) == list(range(REPLAY_EVENTS + 1, REPLAY_EVENTS + 11))
    for _ in range(10):
        ring.append("big", b"x" * 60_000)
    assert len(numbers(ring.replay("big", 0, 10))) == REPLAY_BYTES // 60_000


@pytest.mark.parametrize(("after", "up_to"), [(-5, 3), (0, -1), (3, 3), (99, 100), (0, 2**70), (-(2**70), 2**70)])
def test_a_strange_range_gives_nothing_that_is_not_there(after: int, up_to: int) -> None:
    ring = EventRing("e", max_events=5)
    for _ in range(8):
        ring.append("a", b"\xc0")
    answer = ring.replay("a", after, up_to)
    assert set(numbers(answer)) <= {4, 5, 6, 7, 8}
    assert 0 <= answer["lost"] <= 3
    assert ring.replay("unknown", after, up_to)["events"] == []
    assert ring.replay("unknown", after, up_to)["lost"] == 0


@given(
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=60),
    st.integers(1, 20),
    st.integers(0, 70),
    st.integers(0, 70),
)
def test_lost_and_replayed_together_are_the_whole_range(topics: list[str], size: int, after: int, up_to: int) -> None:
    ring = EventRing("e", max_events=size)
    for topic in topics:
        ring.append(topic, b"\xc0")
    newest = topics.count("a")
    answer = ring.replay("a", after, up_to)
    got = numbers(answer)
    if after < min(up_to, newest):
        assert answer["lost"] + len(got) == min(up_to, newest) - after
        assert got == list(range(after + answer["lost"] + 1, min(up_to, newest) + 1))
    else:
        assert (answer["lost"], got) == (0, [])


@pytest.mark.parametrize("topic", ["", "Turn", "turn.", "a b", "ä", "a" * 161, "a/b"])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(Invalid):
        EventRing("e").append(topic, b"\xc0")


def test_payloads_have_a_size_and_topics_a_number() -> None:
    ring = EventRing("e")
    for body in (b"", b"x" * (wire.MAX_EVENT_BYTES + 1)):
        with pytest.raises(Invalid):
            ring.append("a", body)
    for number in range(MAX_TOPICS):
        ring.append(f"t{number}", b"\xc0")
    with pytest.raises(Overloaded):
        ring.append("one_more", b"\xc0")
    ring.append("t1", b"\xc0")


def test_a_heartbeat_tells_how_far_each_topic_is() -> None:
    ring = EventRing("e")
    ring.append("a", b"\xc0")
    topic, header, payload = ring.heartbeat()
    assert topic == b"ring.heartbeat"
    assert "n" in wire.decode_header(header)
    assert msgpack.unpackb(payload) == {"a": 1}
