"""The kernel is stopped, or dies, in the middle of a turn; the next one takes it up where it stood."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kernel.turns.machine import PAUSED
from tests.kernel.world import Item, World, calls, half_said, says, tool, until, waits


async def test_a_kernel_that_stops_leaves_the_turn_and_the_next_one_answers_it(world: World) -> None:
    turn_id, _ = await half_said(world)
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
    turn_id, _ = await half_said(world)
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
    turn_id, _ = await half_said(world)
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
    assert [each["name"] for each in successor.provider.requests[-1]["request"]["tools"]] == [
        "get_plugin_tools",
        "t",
    ]
    await successor.stop()


async def test_a_step_that_killed_the_kernel_twice_ends_the_turn(world: World) -> None:
    turn_id, _ = await half_said(world)
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
    await half_said(world)
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
    turn_id, _ = await half_said(world)
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
    turn_id, _ = await half_said(world)
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
