"""Nothing accepted is lost and nothing is answered twice: full disks, stops, second outcomes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.machine import Earlier
from tests.kernel.world import Item, World, calls, done, half_said, says, tool, until

FULL = Unavailable("journal.db cannot be used: database or disk is full", hint="free some space there")


class Disk:
    """Stands before a method of the journal and makes it fail as often as told, or for ever."""

    def __init__(self, world: World, method: str, failures: float) -> None:
        self.left = failures
        self.failed = asyncio.Event()
        self._real = getattr(world.journal, method)
        setattr(world.journal, method, self)

    async def __call__(self, *positional: Any, **named: Any) -> Any:
        if self.left > 0:
            self.left -= 1
            self.failed.set()
            raise FULL
        return await self._real(*positional, **named)


# -- the journal cannot be written --------------------------------------------------------------------------------


async def test_a_disk_that_is_full_for_a_moment_costs_no_answer(tmp_path: Path) -> None:
    world = await World(tmp_path, patience_s=5).start()
    Disk(world, "finish", 2)
    turn_id = await world.submit()
    assert (await world.follow(turn_id))[-1]["text"] == "ok"
    assert (await world.row(turn_id)).outcome == "answer"
    assert len(world.provider.requests) == 1 and len(await world.told()) == 1
    await world.stop()


@pytest.mark.parametrize("method", ["finish", "save"])
async def test_a_turn_that_cannot_be_recorded_goes_on_after_the_next_start(tmp_path: Path, method: str) -> None:
    world = await World(tmp_path, patience_s=0.15).start()
    await world.plugin("p", tools=[tool("t", idempotent=True)])
    Disk(world, method, float("inf"))
    world.provider.scripts.append(calls(("t", {})) if method == "save" else says("unrecorded"))
    turn_id = await world.submit()
    outcome = (await world.follow(turn_id))[-1]
    assert (outcome["outcome"], outcome["text"]) == ("error", "")
    assert outcome["error"]["code"] == "unavailable" and "disk is full" in outcome["error"]["message"]
    assert "free some space" in outcome["error"]["hint"] and "next start" in outcome["error"]["hint"]
    assert (await world.row(turn_id)).outcome is None
    assert not world.memory.events and not world.published("turn.finished")
    await world.stop()
    successor = await world.again()
    assert (await successor.follow(turn_id))[-1]["text"] == "ok"
    assert [event["id"] for event in await successor.told()] == [turn_id]
    await successor.stop()


async def test_the_lane_goes_on_when_the_disk_has_room_again(tmp_path: Path) -> None:
    world = await World(tmp_path, patience_s=0.15).start()
    disk = Disk(world, "finish", float("inf"))
    await world.ask("first")
    disk.left = 0
    assert (await world.ask("second"))["outcome"] == "answer"
    await world.stop()


async def test_stopping_the_kernel_while_the_disk_is_full_leaves_the_turn(tmp_path: Path) -> None:
    world = await World(tmp_path).start()
    disk = Disk(world, "finish", float("inf"))
    turn_id = await world.submit()
    await disk.failed.wait()
    await asyncio.wait_for(world.stop(), 5)
    successor = await world.again()
    assert (await successor.follow(turn_id))[-1]["outcome"] == "answer"
    await successor.stop()


async def test_an_input_is_refused_when_it_cannot_be_recorded(world: World) -> None:
    Disk(world, "accept", 1)
    with pytest.raises(Unavailable, match="disk is full"):
        await world.submit()
    assert world.lanes.waiting == 0
    assert (await world.ask())["outcome"] == "answer"


# -- one outcome --------------------------------------------------------------------------------------------------


async def test_a_turn_that_has_its_outcome_gets_no_second_one(world: World) -> None:
    turn_id = await world.submit()
    first = (await world.follow(turn_id))[-1]
    row = await world.row(turn_id)
    frame = TurnFrame.unpack(row.frame, row.schema_version)
    frame.step = "received"
    for earlier in (None, Earlier.BROKEN_OFF):
        world.machine.expect(frame, earlier)
        following = asyncio.create_task(world.follow(turn_id))
        await asyncio.sleep(0)
        world.provider.scripts.append(says("another answer"))
        await world.machine.run(frame)
        assert (await following)[-1] == first
        frame.step = "received"
    assert (await world.row(turn_id)).answer == "ok"
    assert len(world.published("turn.finished")) == 1 and len(await world.told()) == 1


def slow_finish(world: World) -> tuple[asyncio.Event, asyncio.Event]:
    """Let outcomes be recorded only when told so; returns what tells that one is to be, and what lets it."""
    reached, go = asyncio.Event(), asyncio.Event()
    real = world.journal.finish

    async def slow(*positional: Any, **named: Any) -> None:
        reached.set()
        await go.wait()
        await real(*positional, **named)

    world.journal.finish = slow  # type: ignore[method-assign]
    return reached, go


async def test_a_second_stop_does_not_disturb_the_first(world: World) -> None:
    turn_id, _ = await half_said(world)
    reached, go = slow_finish(world)
    following = asyncio.create_task(world.follow(turn_id))
    where = {"channel": "webui", "conversation": "c1"}
    assert await world.web.call("kernel.stop", where) == {"stopped": True}
    await reached.wait()
    assert await world.web.call("kernel.stop", where) == {"stopped": False}
    go.set()
    outcome = (await following)[-1]
    assert (outcome["outcome"], outcome["text"]) == ("stopped", "half")
    assert (await world.row(turn_id)).outcome == "stopped"


async def test_a_stop_that_comes_while_the_outcome_is_recorded_comes_too_late(world: World) -> None:
    reached, go = slow_finish(world)
    turn_id = await world.submit()
    following = asyncio.create_task(world.follow(turn_id))
    await reached.wait()
    assert await world.web.call("kernel.stop", {"channel": "webui", "conversation": "c1"}) == {"stopped": False}
    go.set()
    assert (await following)[-1]["outcome"] == "answer"
    assert (await world.row(turn_id)).outcome == "answer"


async def test_an_input_whose_sender_gives_up_while_it_is_recorded_runs_all_the_same(world: World) -> None:
    real, reached = world.journal.accept, asyncio.Event()

    async def slow(turn: Any) -> Any:
        reached.set()
        accepted = await real(turn)
        await asyncio.sleep(0)
        return accepted

    world.journal.accept = slow  # type: ignore[method-assign]
    sending = asyncio.create_task(world.submit_raw("important", delivery_id="d1"))
    await reached.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    again = await world.submit_raw("important", delivery_id="d1")
    assert again["status"] == "duplicate"
    assert (await world.follow(again["turn_id"]))[-1]["text"] == "ok"
    assert len(world.provider.requests) == 1


async def test_a_sender_that_gives_up_before_a_refusal_leaves_no_trace(world: World) -> None:
    async def slow(turn: Any) -> Any:
        await asyncio.sleep(0)
        raise Conflict("no")

    world.journal.accept = slow  # type: ignore[method-assign]
    sending = asyncio.create_task(world.submit_raw())
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await until(lambda: not world.methods._accepting)
    assert world.lanes._lanes == {}


async def test_a_frame_that_cannot_be_recorded_ends_the_turn_and_not_the_kernel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def odd(request: Item) -> Any:
        yield done("odd", tool_calls=[{"id": "a", "name": "t", "arguments": "{}"}])

    def unpackable(frame: TurnFrame) -> bytes:
        raise ValueError("recursion limit exceeded")

    world.provider.scripts.append(odd)
    turn_id = await world.submit()
    monkeypatch.setattr(TurnFrame, "pack", unpackable)
    monkeypatch.setattr(TurnFrame, "pack_finished", unpackable)
    outcome = (await world.follow(turn_id))[-1]
    assert outcome["error"]["code"] == "internal"
    assert (await world.row(turn_id)).outcome == "error"


async def test_an_unfinished_turn_that_cannot_be_read_ends_with_an_error(world: World) -> None:
    turn_id, _ = await half_said(world)
    await world.journal.save(turn_id, "llm", b"\xc1 damaged", schema_version=1)
    await world.crash()
    successor = await world.again()
    outcome = (await successor.follow(turn_id))[-1]
    assert outcome["outcome"] == "error" and "could not be read" in outcome["error"]["message"]
    await successor.stop()


async def test_frames_of_a_newer_program_are_refused() -> None:
    frame = TurnFrame("t", "webui", "c", "owner", "x", 0.0)
    with pytest.raises(Invalid, match="schema 2"):
        TurnFrame.unpack(frame.pack(), SCHEMA_VERSION + 1)
    with pytest.raises(Invalid, match="damaged"):
        TurnFrame.unpack(b"\xc1", SCHEMA_VERSION)
    with pytest.raises(Invalid, match="damaged"):
        TurnFrame.unpack(b"\x01", SCHEMA_VERSION)
