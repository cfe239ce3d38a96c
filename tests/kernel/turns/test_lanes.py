"""Strictly one after another within a conversation, several conversations side by side."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from homeagent_sdk.errors import Overloaded
from kernel.turns.frame import TurnFrame
from kernel.turns.lanes import Lanes, Slots


def frame(turn_id: str, conversation: str, level: str = "L2") -> TurnFrame:
    return TurnFrame(turn_id, "webui", conversation, "owner", "hi", 0.0, level=level)


class Recorder:
    def __init__(self) -> None:
        self.order: defaultdict[str, list[str]] = defaultdict(list)
        self.running: defaultdict[str, int] = defaultdict(int)
        self.most = 0
        self.gate = asyncio.Event()
        self.started = asyncio.Event()

    async def run(self, turn: TurnFrame) -> None:
        self.running[turn.conversation] += 1
        assert self.running[turn.conversation] == 1, "two turns of one lane at the same time"
        self.most = max(self.most, sum(self.running.values()))
        self.started.set()
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            self.order[turn.conversation].append(turn.turn_id)
        finally:
            self.running[turn.conversation] -= 1


async def settle() -> None:
    for _ in range(500):
        await asyncio.sleep(0)


async def test_order_within_a_lane_and_concurrency_between_lanes() -> None:
    recorder = Recorder()
    slots = Slots(lambda: 4)
    lanes = Lanes(recorder.run, slots, lambda: 100)
    for number in range(5):
        for conversation in "abcdefgh":
            lanes.add(frame(f"{conversation}{number}", conversation))
    await settle()
    assert slots.running == 4
    recorder.gate.set()
    await settle()
    assert recorder.most == 4
    assert all(recorder.order[c] == [f"{c}{n}" for n in range(5)] for c in "abcdefgh")


async def test_one_more_slot_is_kept_for_urgent_turns() -> None:
    recorder = Recorder()
    slots = Slots(lambda: 1)
    lanes = Lanes(recorder.run, slots, lambda: 100)
    lanes.add(frame("busy", "a"))
    lanes.add(frame("ordinary", "b"))
    lanes.add(frame("urgent", "c", "L3"))
    await settle()
    assert slots.running == 2 and recorder.running["c"] == 1 and recorder.running["b"] == 0
    await lanes.close()


async def test_a_full_lane_says_so_at_once() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, Slots(lambda: 1), lambda: 2)
    for number in range(3):
        lanes.check_room(("webui", "a"))
        lanes.add(frame(str(number), "a"))
        await settle()
    with pytest.raises(Overloaded, match="queue full"):
        lanes.check_room(("webui", "a"))
    lanes.check_room(("webui", "b"))
    await lanes.close()


async def test_stop_cancels_the_running_turn_and_the_next_one_runs() -> None:
    recorder = Recorder()
    lanes = Lanes(recorder.run, Slots(lambda: 4), lambda: 100)
    lanes.add(frame("first", "a"))
    lanes.add(frame("second", "a"))
    await recorder.started.wait()
    assert lanes.stop(("webui", "a"))
    assert not lanes.stop(("webui", "nowhere"))
    recorder.gate.set()
    await settle()
    assert recorder.order["a"] == ["second"]


async def test_a_turn_that_fails_ends_alone() -> None:
    seen = []

    async def run(turn: TurnFrame) -> None:
        seen.append(turn.turn_id)
        if turn.turn_id == "bad":
            raise ZeroDivisionError

    lanes = Lanes(run, Slots(lambda: 4), lambda: 100)
    lanes.add(frame("bad", "a"))
    lanes.add(frame("good", "a"))
    await settle()
    assert seen == ["bad", "good"]
