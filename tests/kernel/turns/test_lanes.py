"""Strictly one after another within a conversation, several conversations side by side."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from homeagent_sdk.bus.context import CallScope, current_scope
from homeagent_sdk.errors import Overloaded
from kernel.turns.frame import EMIT, TurnFrame
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

        self.withdrawn: list[str] = []

    async def withdraw(self, turn: TurnFrame) -> None:
        self.withdrawn.append(turn.turn_id)

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


def opened(recorder: Recorder, slots: Slots, queue_limit: int = 100) -> Lanes:
    lanes = Lanes(recorder.run, recorder.withdraw, slots, lambda: queue_limit)
    lanes.open()
    return lanes


async def settle() -> None:
    for _ in range(500):
        await asyncio.sleep(0)


async def test_order_within_a_lane_and_concurrency_between_lanes() -> None:
    recorder = Recorder()
    slots = Slots(lambda: 4)
    lanes = opened(recorder, slots)
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
    lanes = opened(recorder, slots)
    lanes.add(frame("busy", "a"))
    lanes.add(frame("ordinary", "b"))
    lanes.add(frame("urgent", "c", "L3"))
    await settle()
    assert slots.running == 2 and recorder.running["c"] == 1 and recorder.running["b"] == 0
    await lanes.close()


async def test_a_full_lane_says_so_at_once() -> None:
    recorder = Recorder()
    lanes = opened(recorder, Slots(lambda: 1), 2)
    for number in range(3):
        with lanes.room(("webui", "a")):
            lanes.add(frame(str(number), "a"))
        await settle()
    with pytest.raises(Overloaded, match="queue full: 2"), lanes.room(("webui", "a")):
        raise AssertionError("there was no room")
    with lanes.room(("webui", "b")):
        pass
    await lanes.close()


async def test_places_are_kept_while_inputs_are_being_recorded() -> None:
    lanes = opened(Recorder(), Slots(lambda: 1), 2)
    with lanes.room(("webui", "a")), lanes.room(("webui", "a")):
        with pytest.raises(Overloaded), lanes.room(("webui", "a")):
            raise AssertionError("there was no room")
    assert lanes._lanes == {}


async def test_stop_cancels_the_running_turn_and_the_next_one_runs() -> None:
    recorder = Recorder()
    lanes = opened(recorder, Slots(lambda: 4))
    lanes.add(frame("first", "a"))
    lanes.add(frame("second", "a"))
    await recorder.started.wait()
    assert lanes.stop(("webui", "a"))
    assert not lanes.stop(("webui", "nowhere"))
    recorder.gate.set()
    await settle()
    assert recorder.order["a"] == ["second"]


async def test_a_turn_whose_outcome_is_settled_cannot_be_stopped() -> None:
    recorder = Recorder()
    lanes = opened(recorder, Slots(lambda: 4))
    turn = frame("first", "a")
    lanes.add(turn)
    await recorder.started.wait()
    turn.step = EMIT
    assert not lanes.stop(("webui", "a"))
    recorder.gate.set()
    await settle()
    assert recorder.order["a"] == ["first"]


async def test_a_turn_that_waits_for_a_slot_can_be_stopped() -> None:
    recorder = Recorder()
    lanes = opened(recorder, Slots(lambda: 1))
    lanes.add(frame("busy", "a"))
    lanes.add(frame("unlucky", "b"))
    lanes.add(frame("next", "b"))
    await settle()
    assert lanes.stop(("webui", "b"))
    await settle()
    assert recorder.withdrawn == ["unlucky"]
    recorder.gate.set()
    await settle()
    assert recorder.order["b"] == ["next"]
    assert lanes.waiting == 0 and lanes._lanes == {}


async def test_nothing_runs_before_the_lanes_are_open_nor_after_they_are_closed() -> None:
    recorder = Recorder()
    recorder.gate.set()
    lanes = Lanes(recorder.run, recorder.withdraw, Slots(lambda: 4), lambda: 100)
    lanes.add(frame("early", "a"))
    await settle()
    assert not recorder.order["a"]
    lanes.open()
    await settle()
    assert recorder.order["a"] == ["early"]
    await lanes.close()
    lanes.add(frame("late", "a"))
    await settle()
    assert recorder.order["a"] == ["early"]


async def test_a_turn_is_not_bound_by_the_deadline_of_the_call_that_brought_it() -> None:
    scopes = []

    async def run(turn: TurnFrame) -> None:
        scopes.append(current_scope.get())

    lanes = Lanes(run, run, Slots(lambda: 4), lambda: 100)
    lanes.open()
    token = current_scope.set(CallScope(0.0))
    lanes.add(frame("t", "a"))
    current_scope.reset(token)
    await settle()
    assert scopes == [None]


async def test_a_turn_that_fails_ends_alone() -> None:
    seen = []

    async def run(turn: TurnFrame) -> None:
        seen.append(turn.turn_id)
        if turn.turn_id == "bad":
            raise ZeroDivisionError

    lanes = Lanes(run, run, Slots(lambda: 4), lambda: 100)
    lanes.open()
    lanes.add(frame("bad", "a"))
    lanes.add(frame("good", "a"))
    await settle()
    assert seen == ["bad", "good"]
