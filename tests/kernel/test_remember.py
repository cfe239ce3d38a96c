"""The memory is told of every turn that happened, once, in order, whatever is away in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from homeagent_sdk.errors import HomeAgentError, Internal, Invalid, Unavailable
from homeagent_sdk.testing import LocalBus
from kernel.journal import Journal, NewTurn
from kernel.remember import Rememberer, event_of, event_of_frame
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from tests.kernel.world import until

LANE = ("webui", "c1")


class Memory:
    """A memory service that does as told."""

    def __init__(self, bus: LocalBus) -> None:
        self.told: list[str] = []
        self.asked = 0
        self.errors: list[HomeAgentError] = []
        self.fails_at: dict[str, HomeAgentError] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        bus.peer("memory").serve("memory.append", self._append)

    async def _append(self, body: Any, call: Any) -> Any:
        self.asked += 1
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        turn_id = body["event"]["id"]
        if turn_id in self.fails_at:
            raise self.fails_at[turn_id]
        self.told.append(turn_id)
        return {"stored": True}


class House:
    """A journal, a memory and the rememberer between them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        bus = LocalBus()
        self.memory = Memory(bus)
        self.rememberer = Rememberer(bus.peer("kernel"), journal.unremembered, journal.mark_remembered)

    async def finish(self, turn_id: str, *, tell: bool = True, conversation: str = "c1") -> None:
        """Let a turn happen."""
        frame = TurnFrame(turn_id, "webui", conversation, "owner", f"input {turn_id}", 1.0)
        packed = frame.pack()
        await self.journal.accept(NewTurn(turn_id, "webui", conversation, "owner", frame.text, packed))
        await self.journal.finish(turn_id, "answer", "yes", {"type": "outcome"})
        if tell:
            turn = await self.journal.get(turn_id)
            assert turn is not None
            self.rememberer.tell(event_of(turn))

    async def unmarked(self) -> list[str]:
        return [turn.turn_id for turn in await self.journal.unremembered(1000)]


@pytest_asyncio.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    monkeypatch.setattr("kernel.remember._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("kernel.remember._LONGEST_PAUSE_S", 0.002)
    monkeypatch.setattr("kernel.remember._MARK_AFTER_S", 0.005)
    journal = Journal(tmp_path / "journal.db")
    await journal.open()
    made = House(journal)
    yield made
    await made.rememberer.stop()
    await journal.close()


async def test_turns_are_told_in_order_and_marked(house: House) -> None:
    house.rememberer.start()
    for number in range(20):
        await house.finish(f"t{number}")
    await until(lambda: len(house.memory.told) == 20)
    assert house.memory.told == [f"t{number}" for number in range(20)]
    await house.rememberer.stop()
    assert await house.unmarked() == []


async def test_what_an_earlier_run_left_is_told_first_however_much_it_is(house: House) -> None:
    for number in range(120):
        await house.finish(f"t{number:03}", tell=False)
    house.rememberer.start()
    await house.finish("u1")
    await until(lambda: len(house.memory.told) >= 121)
    await asyncio.sleep(0.02)
    assert house.memory.told == sorted(house.memory.told) and len(house.memory.told) == 121


async def test_a_turn_that_ends_while_the_journal_is_read_is_told_once(house: House) -> None:
    await house.finish("t1", tell=False)
    real = house.journal.unremembered

    async def slow(limit: int) -> Any:
        await house.finish("t2")  # it is in the journal, and in the queue
        return await real(limit)

    house.rememberer = Rememberer(house.rememberer._bus, slow, house.journal.mark_remembered)
    house.rememberer.start()
    await until(lambda: len(house.memory.told) >= 2)
    await asyncio.sleep(0.02)
    assert house.memory.told == ["t1", "t2"]


async def test_a_memory_that_is_away_is_told_when_it_is_back(house: House) -> None:
    house.memory.errors = [Unavailable("gone", detail={"bus": True})] * 5
    house.rememberer.start()
    for number in range(3):
        await house.finish(f"t{number}")
    await until(lambda: len(house.memory.told) >= 3)
    assert house.memory.told == ["t0", "t1", "t2"]


async def test_more_than_the_queue_holds_is_found_in_the_journal(house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr("kernel.remember._MOST_WAITING", 3)
    house.memory.gate.clear()
    house.rememberer.start()
    for number in range(10):
        await house.finish(f"t{number}")
    house.memory.gate.set()
    await until(lambda: len(house.memory.told) >= 10)
    assert sorted(set(house.memory.told)) == [f"t{number}" for number in range(10)]


async def test_what_the_memory_refuses_does_not_hold_up_the_rest(house: House) -> None:
    house.memory.fails_at = {"t0": Invalid("too odd")}
    house.rememberer.start()
    await house.finish("t0")
    await house.finish("t1")
    await until(lambda: house.memory.told == ["t1"])
    await house.rememberer.stop()
    assert await house.unmarked() == [], "it is refused for good, so it is not tried for ever"


async def test_a_turn_at_which_the_memory_fails_is_set_aside_until_it_is_restarted(house: House) -> None:
    house.memory.fails_at = {"t0": Internal("a bug there")}
    house.rememberer.start()
    await house.finish("t0")
    await house.finish("t1")
    await until(lambda: house.memory.told == ["t1"])
    await until(lambda: not house.rememberer._told)
    assert await house.unmarked() == ["t0"]
    house.memory.fails_at = {}
    house.rememberer.wake()
    await until(lambda: house.memory.told == ["t1", "t0"])


async def test_a_damaged_frame_does_not_hold_up_the_rest(house: House) -> None:
    await house.finish("t0", tell=False)
    await house.journal.accept(NewTurn("t1", "webui", "c1", "owner", "x", b"\xc1"))
    await house.journal.finish("t1", "answer", "yes")
    newer = NewTurn("t2", "webui", "c1", "owner", "x", b"\x80", schema_version=SCHEMA_VERSION + 1)
    await house.journal.accept(newer)
    await house.journal.finish("t2", "answer", "yes")
    await house.finish("t3", tell=False)
    house.rememberer.start()
    await until(lambda: house.memory.told == ["t0", "t3"])
    await house.rememberer.stop()
    assert await house.unmarked() == ["t1", "t2"], "a newer program will be able to read it"


async def test_two_markers_at_once_mark_everything(house: House) -> None:
    marked: list[str] = []
    entered, go = asyncio.Event(), asyncio.Event()

    async def mark(ids: Iterable[str]) -> None:
        entered.set()
        await go.wait()
        marked.extend(ids)

    house.rememberer._mark = mark
    house.rememberer._told = ["a", "b"]
    first = asyncio.create_task(house.rememberer._mark_told())
    await entered.wait()
    second = asyncio.create_task(house.rememberer._mark_told())
    await asyncio.sleep(0)
    house.rememberer._told += ["c", "d"]
    go.set()
    await asyncio.gather(first, second)
    await house.rememberer._mark_told()
    assert marked == ["a", "b", "c", "d"]


async def test_marks_that_could_not_be_written_are_written_later(house: House) -> None:
    real, failures = house.journal.mark_remembered, [Unavailable("disk full"), Unavailable("disk full")]

    async def mark(ids: Iterable[str]) -> None:
        if failures:
            raise failures.pop()
        await real(ids)

    house.rememberer._mark = mark
    house.rememberer.start()
    await house.finish("t1")
    await until(lambda: house.memory.told and not failures and not house.rememberer._told)
    assert await house.unmarked() == []


async def test_settling_waits_for_other_lanes_only(house: House) -> None:
    house.rememberer.start()
    await until(house.rememberer._settled.is_set)
    house.memory.gate.clear()
    await house.finish("t1")
    async with asyncio.timeout(0.5):
        await house.rememberer.settle(60, LANE)
    waiting = asyncio.create_task(house.rememberer.settle(60, ("webui", "c2")))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    house.memory.gate.set()
    async with asyncio.timeout(5):
        await waiting


async def test_settling_does_not_wait_long(house: House) -> None:
    house.memory.gate.clear()
    await house.finish("t1", tell=False)
    house.rememberer.start()
    async with asyncio.timeout(5):
        await house.rememberer.settle(0.01, LANE)
    house.memory.gate.set()


async def test_a_stop_that_comes_with_the_memory_is_not_lost(house: House) -> None:
    house.memory.gate.clear()
    house.rememberer.start()
    await house.finish("t1")
    waiting = asyncio.create_task(house.rememberer.settle(60, ("webui", "c2")))
    await asyncio.sleep(0.01)
    house.rememberer._settled.set()  # the event has come, the task has not gone on yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    house.memory.gate.set()


def test_the_event_holds_the_words_of_both_sides_and_never_the_prompt() -> None:
    frame = TurnFrame("t1", "webui", "c1", "owner", "as it came", 5.0, speaker="Anna", kind="self")
    frame.raw_message = "as plugins left it"
    frame.hits, frame.context = [{"text": "recalled"}], [{"role": "system", "content": "prompt"}]
    event = event_of_frame(frame, "answer")
    assert (event["input"], event["response"], event["speaker"], event["origin"]) == (
        "as plugins left it",
        "answer",
        "Anna",
        "self",
    )
    assert "recalled" not in str(event) and "prompt" not in str(event)
