"""Nothing accepted is lost and nothing is answered twice: stops, crashes, full disks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.machine import PAUSED, Earlier
from tests.kernel.world import Item, World, calls, done, says, tool, until, waits

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


async def running(world: World, text: str = "long story") -> tuple[str, asyncio.Event]:
    """A turn that waits for its model."""
    never, started = asyncio.Event(), asyncio.Event()
    world.provider.scripts.append(waits(never, "half", started=started))
    turn_id = await world.submit(text)
    await started.wait()
    return turn_id, never


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


# -- the kernel is stopped, or dies -------------------------------------------------------------------------------


async def test_a_kernel_that_stops_leaves_the_turn_and_the_next_one_answers_it(world: World) -> None:
    turn_id, _ = await running(world)
    queued = await world.submit("afterwards")
    await world.stop()
    row = await (successor := await world.again()).row(turn_id)
    assert row.text == "long story"
    assert (await successor.follow(turn_id))[-1]["text"] == "ok"
    assert (await successor.follow(queued))[-1]["text"] == "ok"
    asked = [request["request"]["messages"][-1]["content"] for request in successor.provider.requests]
    assert "long story" in asked[0] and "afterwards" in asked[1]
    await successor.stop()


async def test_who_followed_before_the_restart_can_follow_again_at_once(world: World) -> None:
    turn_id, _ = await running(world)
    await world.crash()
    successor = await world.again(is_open=False)
    following = asyncio.create_task(successor.follow(turn_id))
    await asyncio.sleep(0)
    successor.lanes.open()
    assert (await following)[-1]["outcome"] == "answer"
    await successor.stop()


async def test_a_turn_goes_on_at_the_step_that_was_recorded(world: World) -> None:
    await world.plugin("p", tools=[tool("look", idempotent=True)])
    never = asyncio.Event()
    world.provider.scripts += [calls(("look", {"text": "found it"})), waits(never)]
    turn_id = await world.submit()
    await until(lambda: len(world.provider.requests) == 2)
    await world.crash()
    successor = await world.again()
    assert (await successor.follow(turn_id))[-1]["text"] == "ok"
    (request,) = successor.provider.requests
    assert [m["content"] for m in request["request"]["messages"] if m["role"] == "tool"] == ["found it"]
    assert request["request"]["messages"] == world.provider.last
    outcome = (await successor.row(turn_id)).result
    assert outcome["usage"]["prompt_tokens"] == 20
    await successor.stop()


async def crash_in_tool(world: World, **flags: Any) -> tuple[World, str, Any]:
    """Let the kernel die while a tool runs; returns the next one, the turn, and the plugin there."""
    entered = asyncio.Event()

    async def hang(body: Item) -> Item:
        entered.set()
        await asyncio.sleep(60)
        return {}

    plugin = await world.plugin("p", tools=[tool("act", **flags)])
    plugin.on_tool = hang
    world.provider.scripts.append(calls(("act", {"text": "once"})))
    turn_id = await world.submit()
    await entered.wait()
    await world.crash()
    successor = await world.again(is_open=False)
    again = await successor.plugin("p", tools=[tool("act", **flags)])
    successor.lanes.open()
    return successor, turn_id, again


async def test_a_tool_that_had_started_is_not_run_again_and_the_model_is_told(world: World) -> None:
    successor, turn_id, plugin = await crash_in_tool(world, no_memory=True)
    assert (await successor.follow(turn_id))[-1]["outcome"] == "answer"
    assert not plugin.calls
    (content,) = [m["content"] for m in successor.provider.last if m["role"] == "tool"]
    assert "may or may not have run" in content
    (event,) = await successor.told()
    assert event["tools_used"] == ["act"] and event["tool_results"][0]["no_memory"]
    await successor.stop()


async def test_an_idempotent_tool_runs_again(world: World) -> None:
    successor, turn_id, plugin = await crash_in_tool(world, idempotent=True)
    assert (await successor.follow(turn_id))[-1]["outcome"] == "answer"
    assert [body["arguments"] for body in plugin.calls] == [{"text": "once"}]
    await successor.stop()


async def test_a_tool_that_had_started_and_is_no_longer_there_may_still_have_run(world: World) -> None:
    entered = asyncio.Event()

    async def hang(body: Item) -> Item:
        entered.set()
        await asyncio.sleep(60)
        return {}

    (await world.plugin("p", tools=[tool("act")])).on_tool = hang
    world.provider.scripts.append(calls(("act", {})))
    turn_id = await world.submit()
    await entered.wait()
    await world.crash()
    successor = await world.again()
    await successor.follow(turn_id)
    assert "may or may not have run" in str(successor.provider.last)
    await successor.stop()


async def test_of_a_batch_only_what_was_not_done_is_done(world: World) -> None:
    entered = asyncio.Event()

    async def second_hangs(body: Item) -> Item:
        if body["arguments"]["text"] == "2":
            entered.set()
            await asyncio.sleep(60)
        return {"content": f"did {body['arguments']['text']}"}

    plugin = await world.plugin("p", tools=[tool("act")])
    plugin.on_tool = second_hangs
    world.provider.scripts.append(calls(*(("act", {"text": str(number)}) for number in (1, 2, 3))))
    turn_id = await world.submit()
    await entered.wait()
    await world.crash()
    successor = await world.again(is_open=False)
    again = await successor.plugin("p", tools=[tool("act")])
    again.on_tool = second_hangs
    successor.lanes.open()
    assert (await successor.follow(turn_id))[-1]["outcome"] == "answer"
    assert [body["arguments"]["text"] for body in again.calls] == ["3"]
    contents = [m["content"] for m in successor.provider.last if m["role"] == "tool"]
    assert contents[0] == "did 1" and "may or may not" in contents[1] and contents[2] == "did 3"
    await successor.stop()


async def test_the_result_of_a_tool_that_must_not_run_twice_is_recorded_before_anything_else_runs(world: World) -> None:
    entered = asyncio.Event()
    tools = [tool("act"), tool("look", idempotent=True)]

    async def look_hangs(body: Item) -> Item:
        if body["tool"] == "look":
            entered.set()
            await asyncio.sleep(60)
        return {"content": "did it"}

    plugin = await world.plugin("p", tools=tools)
    plugin.on_tool = look_hangs
    world.provider.scripts.append(calls(("act", {}), ("look", {})))
    turn_id = await world.submit()
    await entered.wait()
    await world.crash()
    successor = await world.again(is_open=False)
    await successor.plugin("p", tools=tools)
    successor.lanes.open()
    await successor.follow(turn_id)
    assert [m["content"] for m in successor.provider.last if m["role"] == "tool"] == ["did it", "done"]
    await successor.stop()


async def test_turns_that_are_taken_up_wait_for_their_plugins(world: World) -> None:
    turn_id, _ = await running(world)
    await world.crash()
    back = asyncio.Event()
    successor = World(world.folder)
    await successor.start(is_open=False)

    async def wait_for_plugins() -> None:
        await back.wait()

    successor.environment.plugins_back = wait_for_plugins
    successor.lanes.open()
    await successor.ask("a new one", conversation="elsewhere")
    assert len(successor.provider.requests) == 1
    await successor.plugin("p", tools=[tool("t")])
    back.set()
    await successor.follow(turn_id)
    assert [each["name"] for each in successor.provider.requests[-1]["request"]["tools"]] == ["t"]
    await successor.stop()


async def test_a_step_that_killed_the_kernel_twice_ends_the_turn(world: World) -> None:
    turn_id, _ = await running(world)
    await world.crash()
    second = await kernel_that_hangs(world)
    assert len(second.provider.requests) == 1
    await second.crash()
    third = await World(world.folder).start()
    outcome = (await third.follow(turn_id))[-1]
    assert outcome["outcome"] == "error" and "2 times" in outcome["error"]["message"]
    assert not third.provider.requests
    assert (await third.ask())["outcome"] == "answer"
    await third.stop()


async def kernel_that_hangs(before: World) -> World:
    """The next kernel, in the middle of the turn that it takes up."""
    successor = await World(before.folder).start(is_open=False)
    started = asyncio.Event()
    successor.provider.scripts.append(waits(asyncio.Event(), started=started))
    successor.lanes.open()
    await started.wait()
    return successor


async def test_a_turn_that_only_waited_is_not_blamed(world: World) -> None:
    await running(world)
    waiting = await world.submit("I only waited")
    await world.crash()
    second = await World(world.folder).start(is_open=False)
    started = asyncio.Event()
    second.provider.scripts += [says("the first is done"), waits(asyncio.Event(), started=started)]
    second.lanes.open()
    await started.wait()
    await second.crash()
    third = await World(world.folder).start()
    assert (await third.follow(waiting))[-1]["outcome"] == "answer", "it ran in one crash only"
    await third.stop()


async def test_kernels_that_are_stopped_on_purpose_do_not_count_as_killed(world: World) -> None:
    turn_id, _ = await running(world)
    kernel = world
    for _ in range(4):
        await kernel.stop()
        kernel = await kernel_that_hangs(kernel)
    assert (await kernel.row(turn_id)).step != PAUSED
    await kernel.stop()
    last = await World(world.folder).start()
    assert (await last.follow(turn_id))[-1]["outcome"] == "answer"
    await last.stop()


async def test_a_crash_after_a_stop_on_purpose_counts(world: World) -> None:
    turn_id, _ = await running(world)
    await world.stop()
    kernel = world
    for _ in range(2):
        kernel = await kernel_that_hangs(kernel)
        await kernel.crash()
    last = await World(world.folder).start()
    assert (await last.follow(turn_id))[-1]["outcome"] == "error"
    await last.stop()


@pytest.mark.parametrize(("redelivery", "times"), [("at_most_once", 0), ("at_least_once", 1)])
async def test_an_answer_that_was_being_sent_is_sent_again_only_if_it_may_be(
    world: World, redelivery: str, times: int
) -> None:
    entered = asyncio.Event()

    async def hang(body: Item) -> Item:
        entered.set()
        await asyncio.sleep(60)
        return {}

    outputs = [{"name": "chat", "description": "x", "redelivery": redelivery}]
    plugin = await world.plugin("chat", outputs=outputs)
    plugin.on_output = hang
    turn_id = await world.submit("a timer fires", channel="chat", kind="self")
    await entered.wait()
    await world.crash()
    successor = await world.again(is_open=False)
    again = await successor.plugin("chat", outputs=outputs)
    successor.lanes.open()
    assert (await successor.follow(turn_id))[-1]["text"] == "ok"
    assert [body["output_id"] for body in again.sent] == [turn_id] * times
    assert not successor.provider.requests, "the answer was there already"
    await successor.stop()


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
    turn_id, _ = await running(world)
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
    turn_id, _ = await running(world)
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
