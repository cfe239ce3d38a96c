"""The tool loop: what runs, in which order, and what the model is told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Internal, TimedOut
from tests.kernel.world import TOOL, Item, World, calls, died, says, tool, until


def results(world: World) -> list[str]:
    """What the model was told of its calls, in the last request."""
    return [message["content"] for message in world.provider.last if message["role"] == "tool"]


async def run_calls(world: World, *wanted: Any) -> Item:
    world.provider.scripts += [calls(*wanted), says("done")]
    return await world.ask()


async def test_a_call_runs_and_its_result_goes_back(world: World) -> None:
    echo = await world.plugin("echo", tools=[tool("echo")])
    world.provider.scripts += [calls(("echo", {"text": "ping"}, "a1"), text="let me see"), says("pong")]
    turn_id = await world.submit("go", speaker="Anna")
    items = await world.follow(turn_id)
    activity = [(item["tool"], item["status"]) for item in items if item["type"] == "tool"]
    assert activity == [("echo", "started"), ("echo", "ok")]
    assert items[-1]["text"] == "pong"
    assert world.provider.last[-2:] == [
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "a1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "ping"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "ping"},
    ]
    assert echo.calls == [
        {
            "tool": "echo",
            "arguments": {"text": "ping"},
            "context": {
                "turn_id": turn_id,
                "channel": "webui",
                "conversation": "c1",
                "principal": "owner",
                "speaker": "Anna",
                "call_id": f"{turn_id}-a1",
            },
        }
    ]
    assert world.published("tool.call") == [{"turn_id": turn_id, "tool": "echo", "plugin": "echo", "status": "ok"}]
    (event,) = await world.told()
    assert event["tools_used"] == ["echo"]
    assert event["tool_results"] == [{"name": "echo", "output": "ping", "no_memory": False}]


async def test_wrong_arguments_never_reach_the_tool_and_the_model_is_told_all_of_it(world: World) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["s"]}
    counts = await world.plugin("counts", tools=[{"name": "count", "description": "x", "parameters": schema}])
    await run_calls(world, ("count", {"n": "many"}))
    told = json.loads(results(world)[0])
    assert told["error"] == "invalid arguments"
    assert {(each["field"], each["reason"]) for each in told["problems"]} == {("s", "required"), ("n", "type")}
    assert all(each["hint"] for each in told["problems"])
    assert not counts.calls
    (event,) = await world.told()
    assert event["tools_used"] == [] and event["tool_results"] == []


async def test_a_tool_that_does_not_exist_is_answered_with_similar_ones(world: World) -> None:
    await world.plugin("timer", tools=[tool("timer_set")])
    assert (await run_calls(world, ("timer_sett", {})))["outcome"] == "answer"
    assert "no tool 'timer_sett'" in results(world)[0] and "timer_set" in results(world)[0]


@pytest.mark.parametrize(
    "text", ['{"text": "rm -rf /tm', '{"text": "a"', "", "[1]", "{'text': 1}", '{"text": "\\ud800"}']
)
async def test_arguments_that_are_not_one_whole_object_never_run(world: World, text: str) -> None:
    echo = await world.plugin("echo", tools=[tool("echo")])
    await run_calls(world, ("echo", text))
    assert not echo.calls
    assert "arguments" in results(world)[0]
    sent = world.provider.last[-2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict), "a provider refuses a request with broken arguments in it"


async def test_a_name_that_no_provider_takes_back_is_not_sent_back(world: World) -> None:
    await run_calls(world, ("functions.echo it", {}), ("", {}), ("é" * 100, {}))
    names = [call["function"]["name"] for call in world.provider.last[-4]["tool_calls"]]
    assert names == ["functions_echo_it", "unknown", "_" * 64]


async def test_safe_tools_run_together_and_results_stand_in_index_order(world: World) -> None:
    running, most = 0, 0
    all_run = asyncio.Event()

    async def slow(body: Item) -> Item:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            all_run.set()
        await all_run.wait()
        for _ in range(3 - int(body["arguments"]["text"])):
            await asyncio.sleep(0)
        running -= 1
        return {"content": body["arguments"]["text"], "is_error": False}

    plugin = await world.plugin("slow", tools=[tool("slow", parallel_safe=True, idempotent=True)])
    plugin.on_tool = slow
    await run_calls(world, *(("slow", {"text": str(number)}) for number in range(3)))
    assert most == 3
    assert results(world) == ["0", "1", "2"]


async def test_other_tools_run_one_by_one(world: World) -> None:
    running = 0

    async def alone(body: Item) -> Item:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0)
        running -= 1
        return {"content": body["arguments"]["text"], "is_error": False}

    plugin = await world.plugin("p", tools=[tool("plain"), tool("serial", parallel_safe=True, serial=True)])
    plugin.on_tool = alone
    await run_calls(world, ("plain", {"text": "0"}), ("serial", {"text": "1"}), ("plain", {"text": "2"}))
    assert results(world) == ["0", "1", "2"]


async def test_an_error_of_a_tool_is_passed_on_as_it_is(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("bad")])

    async def bad(body: Item) -> Item:
        return {"content": None, "is_error": True, "error": {"field": "text", "reason": "value", "hint": "shorter"}}

    plugin.on_tool = bad
    world.provider.scripts += [calls(("bad", {})), says("done")]
    items = await world.follow(await world.submit())
    assert [item["status"] for item in items if item["type"] == "tool"] == ["started", "failed"]
    assert json.loads(results(world)[0]) == {"field": "text", "reason": "value", "hint": "shorter"}


@pytest.mark.parametrize("answer", [None, [1, 2], "text", {"content": {b"\xff": 1}}, {"content": {"a": {1: [b"x"]}}}])
async def test_a_plugin_that_answers_nonsense_fails_its_call_alone(world: World, answer: Any) -> None:
    plugin = await world.plugin("p", tools=[tool("odd")])

    async def odd(body: Item) -> Any:
        return answer

    plugin.on_tool = odd
    assert (await run_calls(world, ("odd", {})))["text"] == "done"
    assert isinstance(results(world)[0], str)


async def test_a_result_nested_beyond_all_measure_fails_its_call_alone(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("deep")])

    async def deep(body: Item) -> Any:
        value: Any = 1
        for _ in range(480):
            value = [value]
        return {"content": value}

    plugin.on_tool = deep
    assert (await run_calls(world, ("deep", {})))["text"] == "done"


async def test_a_tool_that_is_late_is_said_to_be_perhaps_still_running(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("slow", timeout_s=0.01)])

    async def slow(body: Item) -> Item:
        await asyncio.sleep(30)
        return {}

    plugin.on_tool = slow
    await run_calls(world, ("slow", {}))
    told = json.loads(results(world)[0])
    assert told["reason"] == "timeout" and "may still be running" in told["detail"] and "0.01 s" in told["detail"]


async def test_a_plugin_that_dies_under_a_call_is_restarting(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("write"), tool("read", idempotent=True)])

    async def dies(body: Item) -> Item:
        raise died(sent=True)

    plugin.on_tool = dies
    await run_calls(world, ("write", {}), ("read", {}))
    write, read = (json.loads(each)["detail"] for each in results(world))
    assert "p is unavailable, restarting" in write and "may or may not have run" in write
    assert "p is unavailable, restarting" in read and "may or may not" not in read


async def test_a_tool_of_a_plugin_that_is_being_restarted_is_no_unknown_tool(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("write")], outputs=[{"name": "chat", "description": "x"}])
    plugin.die()
    await run_calls(world, ("write", {}), ("output_send__chat", {"payload": "x"}))
    for each in results(world):
        assert "p is unavailable, restarting" in each and "not made" in each
    await world.plugin("p", tools=[tool("write")])
    await run_calls(world, ("write", {}))
    assert results(world) == ["done"]
    assert world.plugins.absent_tools == {}
    world.plugins.forget("p", 0, for_good=True)
    await run_calls(world, ("write", {}))
    assert "no tool" in results(world)[0]


async def test_a_huge_result_is_bounded_and_fits_into_the_prompt(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("read")])

    async def huge(body: Item) -> Item:
        return {"content": "x" * 1_000_000}

    plugin.on_tool = huge
    await run_calls(world, ("read", {}))
    (content,) = results(world)
    assert len(content) < 110_000 and content.endswith("no room for the rest of this result]")
    (event,) = await world.told()
    assert len(event["tool_results"][0]["output"]) == 8000


async def test_short_results_beside_a_huge_one_stay_whole(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("read")])

    async def some(body: Item) -> Item:
        return {"content": "y" * 1000 if body["arguments"]["text"] == "short" else "x" * 150_000}

    plugin.on_tool = some
    await run_calls(world, ("read", {"text": "short"}), ("read", {"text": "long"}))
    short, long = results(world)
    assert short == "y" * 1000 and 2000 < len(long) < 110_000


async def test_an_empty_result_is_empty(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("silent")])

    async def silent(body: Item) -> Item:
        return {"content": "", "is_error": False}

    plugin.on_tool = silent
    await run_calls(world, ("silent", {}))
    assert results(world) == [""]


async def test_private_results_are_marked_for_the_memory(world: World) -> None:
    await world.plugin("p", tools=[tool("secret", no_memory=True), tool("open")])
    await run_calls(world, ("secret", {"text": "4711"}), ("open", {"text": "weather"}))
    (event,) = await world.told()
    assert [(each["output"], each["no_memory"]) for each in event["tool_results"]] == [
        ("4711", True),
        ("weather", False),
    ]


async def test_at_the_limit_the_model_gets_exactly_one_call_without_tools(tmp_path: Path) -> None:
    world = await World(tmp_path, {"core.agent.max_tool_turns": "3"}).start()
    plugin = await world.plugin("p", tools=[tool("more")])
    world.provider.scripts += [calls(("more", {"text": str(number)})) for number in range(3)]
    world.provider.scripts += [calls(("more", {}), text="so far: three")]
    assert (await world.ask())["text"] == "so far: three"
    assert len(plugin.calls) == 3
    assert [each["request"]["tool_choice"] for each in world.provider.requests] == ["auto", "auto", "auto", "none"]
    assert "limit of 3 rounds" in world.provider.last[-1]["content"]
    await world.stop()


async def test_a_model_with_nothing_to_report_at_the_limit_is_spoken_for(tmp_path: Path) -> None:
    world = await World(tmp_path, {"core.agent.max_tool_turns": "1"}).start()
    await world.plugin("p", tools=[tool("more")])
    world.provider.scripts += [calls(("more", {})), says(" ")]
    assert "too many tool calls" in (await world.ask())["text"]
    await world.stop()


async def test_the_same_call_with_the_same_result_three_times_ends_the_loop(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("poll")])
    world.provider.scripts += [calls(("poll", {"text": "x"}, f"c{number}")) for number in range(9)]
    await world.ask()
    assert len(plugin.calls) == 3 and len(world.provider.requests) == 4
    assert world.provider.requests[-1]["request"]["tool_choice"] == "none"


async def test_schemas_that_were_fetched_can_be_called_for_the_rest_of_the_turn(world: World) -> None:
    wide = {**TOOL, "description": "long " * 700}
    plugin = await world.plugin("wide", tools=[{"name": "wide_tool", **wide}])
    world.provider.scripts += [
        calls(("get_plugin_tools", {"plugin_name": "wide"})),
        calls(("wide_tool", {"text": "now"})),
        says("done"),
    ]
    assert (await world.ask())["text"] == "done"
    offered = [[each["name"] for each in request["request"]["tools"]] for request in world.provider.requests]
    assert offered == [["get_plugin_tools"], ["get_plugin_tools", "wide_tool"], ["get_plugin_tools", "wide_tool"]]
    assert [body["arguments"] for body in plugin.calls] == [{"text": "now"}]
    fixed = {request["request"]["messages"][0]["content"] for request in world.provider.requests}
    assert len(fixed) == 1, "the fixed part is the same whatever is fetched"
    await world.ask("next turn")
    assert [each["name"] for each in world.provider.requests[-1]["request"]["tools"]] == ["get_plugin_tools"]


async def test_fetching_from_a_plugin_that_there_is_not_is_answered(world: World) -> None:
    await world.plugin("wide", tools=[{"name": "wide_tool", **TOOL, "description": "long " * 700}])
    await run_calls(world, ("get_plugin_tools", {"plugin_name": "narrow"}))
    assert "wide" in results(world)[0]


async def test_what_needs_approval_is_refused(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("delete_all", requires_approval=True)])
    await run_calls(world, ("delete_all", {}))
    assert "approval" in results(world)[0] and not plugin.calls


async def test_more_calls_than_a_batch_may_have_are_refused_one_by_one(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("t", parallel_safe=True, idempotent=True)])
    await run_calls(world, *(("t", {"text": str(number)}) for number in range(40)))
    assert len(plugin.calls) == 32
    assert results(world)[:32] == [str(number) for number in range(32)]
    assert all("Only 32" in each for each in results(world)[32:])


async def test_ids_that_a_provider_gives_twice_are_made_unique(world: World) -> None:
    plugin = await world.plugin("p", tools=[tool("t")])
    world.provider.scripts += [
        calls(("t", {"text": "0"}, "call_0"), ("t", {"text": "1"}, "call_0"), ("t", {"text": "2"}, "")),
        calls(("t", {"text": "3"}, "call_0")),
        says("done"),
    ]
    assert (await world.ask())["text"] == "done"
    ids = [body["context"]["call_id"] for body in plugin.calls]
    assert len(set(ids)) == 4
    asked = [call["id"] for message in world.provider.last for call in message.get("tool_calls") or ()]
    assert [m["tool_call_id"] for m in world.provider.last if m["role"] == "tool"] == asked


async def test_what_a_model_wants_back_with_its_answer_goes_back(world: World) -> None:
    await world.plugin("p", tools=[tool("t")])
    opaque = {"adapter": "x", "json": '{"signature": "s"}'}
    world.provider.scripts += [calls(("t", {}), opaque=opaque), says("done")]
    await world.ask()
    assert world.provider.last[-2]["opaque"] == opaque


async def test_stop_cancels_the_tools_under_way(world: World) -> None:
    gone: list[str] = []
    running = asyncio.Event()

    async def slow(body: Item) -> Item:
        running.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            gone.append(body["arguments"]["text"])
            raise
        return {}

    plugin = await world.plugin("p", tools=[tool("t", parallel_safe=True, idempotent=True)])
    plugin.on_tool = slow
    world.provider.scripts += [calls(("t", {"text": "a"}), ("t", {"text": "b"}), text="wait")]
    turn_id = await world.submit()
    await running.wait()
    await until(lambda: len(plugin.calls) == 2)
    assert await world.web.call("kernel.stop", {"channel": "webui", "conversation": "c1"}) == {"stopped": True}
    assert (await world.follow(turn_id))[-1]["outcome"] == "stopped"
    assert gone == ["a", "b"]
    assert (await world.ask())["text"] == "ok"


@pytest.mark.parametrize("error", [Internal("crashed"), TimedOut("late")])
async def test_one_of_several_calls_may_fail(world: World, error: Exception) -> None:
    plugin = await world.plugin("p", tools=[tool("t", parallel_safe=True)])

    async def some(body: Item) -> Item:
        if body["arguments"]["text"] == "bad":
            raise error
        return {"content": "good"}

    plugin.on_tool = some
    await run_calls(world, ("t", {"text": "x"}), ("t", {"text": "bad"}), ("t", {"text": "y"}))
    assert results(world)[0] == results(world)[2] == "good" and "reason" in results(world)[1]
