"""A socket in the loop: nothing is missed, nothing blocks, nothing grows without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from homeagent_sdk.bus.link import Link
from homeagent_sdk.errors import Overloaded

MakePair = Callable[..., tuple[Any, Any]]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[MakePair]:
    """Make two connected sockets over ipc that hold little."""
    context: zmq.Context[Any] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def make(mark: int = 2, bound: bool = True) -> tuple[Any, Any]:
        ours, theirs = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        address = f"ipc://{tmp_path}/{len(sockets)}.sock"
        for one in (ours, theirs):
            sockets.append(one)
            one.setsockopt(zmq.SNDHWM, mark)
            one.setsockopt(zmq.RCVHWM, mark)
            one.setsockopt(zmq.LINGER, 0)
            one.setsockopt(zmq.IMMEDIATE, 1)
        if bound:
            theirs.bind(address)
        ours.connect(address)
        return ours, theirs

    yield make
    context.destroy(linger=0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - sockets have no event to wait for
            await asyncio.sleep(0.001)


async def test_a_flood_in_both_directions_arrives_whole_and_in_order(pair: MakePair) -> None:
    ours, theirs = pair(mark=10)
    got: dict[str, list[int]] = {"ours": [], "theirs": []}
    left = Link(ours, lambda frames: got["ours"].append(int(frames[0])), queue_limit=2000)
    right = Link(theirs, lambda frames: got["theirs"].append(int(frames[0])), queue_limit=2000)
    left.start()
    right.start()
    for number in range(1500):
        left.send([b"%d" % number])
        right.send([b"%d" % number, b"x" * 5000])
    await until(lambda: len(got["ours"]) == len(got["theirs"]) == 1500)
    assert got["ours"] == got["theirs"] == list(range(1500))
    left.close()
    right.close()


async def test_a_handler_that_answers_and_one_that_fails_stop_nothing(pair: MakePair) -> None:
    ours, theirs = pair()
    answers: list[bytes] = []

    def answer(frames: list[bytes]) -> None:
        right.send(frames)
        if frames[0] == b"3":
            raise ZeroDivisionError

    left, right = Link(ours, lambda frames: answers.append(frames[0])), Link(theirs, answer)
    left.start()
    right.start()
    for number in range(50):
        left.send([b"%d" % number])
    await until(lambda: len(answers) == 50)
    left.close()
    right.close()


async def test_what_the_socket_does_not_take_waits_in_a_bounded_queue(pair: MakePair) -> None:
    ours, theirs = pair()
    link = Link(ours, lambda frames: None, queue_limit=10)
    link.start()
    sent = 0
    with pytest.raises(Overloaded, match="10 messages wait"):
        for sent in range(100_000):
            link.send([b"%d" % sent, b"x" * 10_000])
    assert link.is_crowded
    link.send([b"reserved"], reserve=1)
    with pytest.raises(Overloaded):
        link.send([b"too much"], reserve=1)
    waiting = asyncio.create_task(link.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    got: list[bytes] = []
    other = Link(theirs, lambda frames: got.append(frames[0]))
    other.start()
    await asyncio.wait_for(waiting, 5)
    await until(lambda: len(got) == sent + 1)
    assert got == [*(b"%d" % number for number in range(sent)), b"reserved"]
    link.close()
    other.close()


async def test_the_queue_is_bounded_by_bytes_too(pair: MakePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homeagent_sdk.bus.link._QUEUE_BYTES", 100_000)
    ours, _ = pair()
    link = Link(ours, lambda frames: None)
    link.start()
    with pytest.raises(Overloaded):
        for _ in range(1000):
            link.send([b"x" * 30_000])
    assert len(link._queue) == 3
    assert [len(frames[0]) for frames in link.forget_queue()] == [30_000] * 3
    assert not link.is_crowded
    link.close()


async def test_forgetting_the_queue_and_closing_wake_those_who_wait_for_room(pair: MakePair) -> None:
    for end in (Link.forget_queue, Link.close):
        ours, _ = pair()
        link = Link(ours, lambda frames: None, queue_limit=4)
        link.start()
        with pytest.raises(Overloaded):
            for _ in range(100_000):
                link.send([b"x" * 10_000])
        waiting = asyncio.create_task(link.room())
        await asyncio.sleep(0)
        end(link)
        await asyncio.wait_for(waiting, 1)
        link.close()


async def test_nothing_is_sent_to_a_socket_without_a_peer(pair: MakePair) -> None:
    ours, _ = pair(bound=False)
    link = Link(ours, lambda frames: None)
    link.start()
    link.send([b"hello"])
    assert list(link.forget_queue()) == [[b"hello"]]
    link.close()


async def test_a_burst_leaves_the_loop_to_others(pair: MakePair) -> None:
    ours, theirs = pair(mark=5000)
    turns = 0
    seen: list[int] = []

    def count(frames: list[bytes]) -> None:
        seen.append(turns)

    assert ours.poll(2000, zmq.POLLOUT)
    for number in range(2000):
        ours.send(b"%d" % number)
    await asyncio.sleep(0.1)  # until the socket has them all, so that only the burst's limit ends a round
    link = Link(theirs, count)
    link.start()

    async def others() -> None:
        nonlocal turns
        while len(seen) < 2000:
            turns += 1
            await asyncio.sleep(0)

    await asyncio.wait_for(others(), 5)
    assert max(seen.count(turn) for turn in set(seen)) <= 256
    link.close()
