"""The seven stages in a turn: what a handler may change, and what its response means where."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from homeagent_sdk.errors import Invalid
from tests.kernel.world import FakePlugin, Item, World, calls, fails, says, stage, stays, tool, until

STAGES = (
    "on_input",
    "pre_action",
    "post_action",
    "before_toolcall",
    "after_toolcall",
    "before_output",
    "after_output",
)


async def handler(
    world: World, name: str, *changes: str, answer: Item | Exception | None = None, **more: Any
) -> FakePlugin:
    """A plugin with one handler that always answers the same."""
    plugin = await world.plugin(more.pop("plugin", "guard"), stages=[stage(name, *changes, **more)])

    async def respond(body: Item) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    plugin.on_stage = respond
    return plugin


def response(text: str) -> Item:
    return {"changes": {}, "response": text}


def changes(**fields: Any) -> Item:
    return {"changes": fields, "response": None}


def results(world: World) -> list[str]:
    return [message["content"] for message in world.provider.last if message["role"] == "tool"]


async def test_watchers_see_every_stage_with_its_fields_and_change_nothing(world: World) -> None:
    plugin = await world.plugin("watcher", stages=[stage(name) for name in STAGES])
    await world.plugin("p", tools=[tool("t")])
    world.provider.scripts += [calls(("t", {"text": "x"})), says("done")]
    turn_id = await world.submit("hi", speaker="Anna")
    assert (await world.follow(turn_id))[-1]["text"] == "done"
    await until(lambda: len(plugin.stage_calls) == 8)
    seen = [(body["stage"], sorted(body["fields"])) for body in plugin.stage_calls]
    assert seen == [
        ("on_input", ["raw_message"]),
        ("pre_action", ["context_messages"]),
        ("post_action", ["text", "tool_calls"]),
        ("before_toolcall", ["arguments", "tool"]),
        ("after_toolcall", ["result", "tool"]),
        ("post_action", ["text", "tool_calls"]),
        ("before_output", ["final_text"]),
        ("after_output", ["final_text"]),
    ]
    assert plugin.stage_calls[0]["context"] == {
        "turn_id": turn_id,
        "channel": "webui",
        "conversation": "c1",
        "principal": "owner",
        "speaker": "Anna",
    }
    assert [event["stage"] for event in world.published("stage")] == [name for name, _ in seen]


async def test_on_input_changes_what_model_timeline_and_memory_get_but_not_the_journal(world: World) -> None:
    plugin = await handler(world, "on_input", "raw_message", answer=changes(raw_message="card ****"))
    turn_id = await world.submit("card 1234")
    await world.follow(turn_id)
    assert world.provider.last[-1]["content"].endswith("card ****")
    assert (await world.told())[0]["input"] == "card ****"
    assert (await world.row(turn_id)).text == "card 1234"
    plugin.on_stage = plugin._nothing
    await world.ask("next")
    assert "1234" not in str(world.provider.last)
    successor = await world.again()
    await successor.ask("after a restart")
    assert "card ****" in str(successor.provider.last) and "1234" not in str(successor.provider.last)
    await successor.stop()


@pytest.mark.parametrize("name", ["on_input", "pre_action"])
async def test_a_response_before_the_model_is_the_answer(world: World, name: str) -> None:
    await handler(world, name, "response", answer=response("from the plugin"))
    watcher = await handler(world, "after_output", plugin="watcher")
    assert (await world.ask())["text"] == "from the plugin"
    assert not world.provider.requests
    await until(lambda: watcher.stage_calls)
    assert watcher.stage_calls[0]["fields"] == {"final_text": "from the plugin"}
    assert (await world.told())[0]["response"] == "from the plugin"


async def test_a_response_goes_through_before_output(world: World) -> None:
    await handler(world, "on_input", "response", answer=response("draft"))
    await handler(world, "before_output", "final_text", answer=changes(final_text="final"), plugin="editor")
    assert (await world.ask())["text"] == "final"


async def test_pre_action_changes_the_context(world: World) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    await handler(world, "pre_action", "context_messages", answer=changes(context_messages=messages))
    await world.ask()
    assert world.provider.last == messages


async def test_a_context_that_was_changed_is_changed_again_when_it_was_too_long(world: World) -> None:
    guard = await world.plugin("guard", stages=[stage("pre_action", "context_messages", required=True)])

    async def redact(body: Item) -> Item:
        messages = [
            {**each, "content": each["content"].replace("1234", "****")} for each in body["fields"]["context_messages"]
        ]
        return changes(context_messages=messages)

    guard.on_stage = redact
    world.provider.scripts += [fails(Invalid("too long", detail={"context_full": True})), says("ok")]
    await world.ask("my card is 1234")
    assert len(world.provider.requests) == 2 and "1234" not in str(world.provider.requests)


async def test_post_action_changes_the_text_and_the_calls(world: World) -> None:
    p = await world.plugin("p", tools=[tool("good"), tool("bad")])
    guard = await world.plugin("guard", stages=[stage("post_action", "text", "tool_calls")])

    async def swap(body: Item) -> Item:
        if not body["fields"]["tool_calls"]:
            return changes(text=body["fields"]["text"] + "!")
        return changes(tool_calls=[{"id": "x", "name": "good", "arguments": {"text": "as an object"}}])

    guard.on_stage = swap
    world.provider.scripts += [calls(("bad", {}), opaque={"adapter": "a", "json": "{}"}), says("done")]
    assert (await world.ask())["text"] == "done!"
    assert [(body["tool"], body["arguments"]) for body in p.calls] == [("good", {"text": "as an object"})]
    assert "opaque" not in world.provider.last[-2], "it vouched for what the model wrote"


async def test_a_response_of_post_action_ends_the_loop(world: World) -> None:
    p = await world.plugin("p", tools=[tool("t")])
    await handler(world, "post_action", "response", answer=response("enough"))
    world.provider.scripts.append(calls(("t", {})))
    assert (await world.ask())["text"] == "enough"
    assert not p.calls and len(world.provider.requests) == 1


async def test_post_action_cannot_go_on_calling_beyond_the_limit(world: World) -> None:
    p = await world.plugin("p", tools=[tool("t")])
    again = [{"id": "x", "name": "t", "arguments": "{}"}]
    await handler(world, "post_action", "tool_calls", answer=changes(tool_calls=again))
    assert (await world.ask())["outcome"] == "answer"
    assert len(p.calls) <= 10


async def test_before_toolcall_changes_the_arguments(world: World) -> None:
    p = await world.plugin("p", tools=[tool("t")])
    await handler(world, "before_toolcall", "arguments", answer=changes(arguments={"text": "safe"}))
    world.provider.scripts.append(calls(("t", {"text": "dangerous"})))
    await world.ask()
    assert p.calls[0]["arguments"] == {"text": "safe"}


async def test_arguments_that_a_plugin_made_wrong_do_not_reach_the_tool(world: World) -> None:
    p = await world.plugin("p", tools=[tool("t"), {"name": "wide", "description": "long " * 700}])
    await handler(world, "before_toolcall", "arguments", answer=changes(arguments={"nonsense": 1}))
    world.provider.scripts.append(calls(("t", {"text": "x"}), ("get_plugin_tools", {"plugin_name": "p"})))
    assert (await world.ask())["outcome"] == "answer"
    assert not p.calls and all("A plugin changed the arguments" in each for each in results(world))


async def test_a_response_of_before_toolcall_rejects_the_call_with_the_reason(world: World) -> None:
    p = await world.plugin("p", tools=[tool("t")])
    await handler(world, "before_toolcall", "response", answer=response("not at night"))
    world.provider.scripts += [calls(("t", {})), says("sorry")]
    assert (await world.ask())["text"] == "sorry"
    assert results(world) == ["Rejected: not at night"] and not p.calls
    assert (await world.told())[0]["tools_used"] == []


async def test_after_toolcall_changes_the_result(world: World) -> None:
    await world.plugin("p", tools=[tool("t")])
    await handler(world, "after_toolcall", "result", answer=changes(result={"clean": True}))
    world.provider.scripts.append(calls(("t", {"text": "dirty"})))
    await world.ask()
    assert results(world) == ['{"clean":true}']
    assert "dirty" not in str(await world.told())


async def test_a_response_of_after_toolcall_ends_the_loop_and_what_was_left_did_not_run(world: World) -> None:
    p = await world.plugin("p", tools=[tool("first"), tool("second")])
    await handler(world, "after_toolcall", "response", answer=response("that is all"))
    world.provider.scripts.append(calls(("first", {"text": "a"}), ("second", {})))
    assert (await world.ask())["text"] == "that is all"
    assert [body["tool"] for body in p.calls] == ["first"] and len(world.provider.requests) == 1
    (event,) = await world.told()
    assert event["tools_used"] == ["first"] and [each["output"] for each in event["tool_results"]] == ["a"]


async def test_own_tools_means_own_tools(world: World) -> None:
    own = await world.plugin("own", tools=[tool("mine")], stages=[stage("before_toolcall", scope="own_tools")])
    await world.plugin("p", tools=[tool("other")])
    world.provider.scripts.append(calls(("mine", {}), ("other", {})))
    await world.ask()
    assert [body["fields"]["tool"] for body in own.stage_calls] == ["mine"]


async def test_before_output_changes_the_text(world: World) -> None:
    await handler(world, "before_output", "final_text", answer=changes(final_text="nicer"))
    turn_id = await world.submit()
    assert (await world.follow(turn_id))[-1]["text"] == "nicer"
    assert (await world.row(turn_id)).answer == "nicer"


async def test_a_response_of_before_output_replaces_the_text_and_an_empty_one_sends_nothing(world: World) -> None:
    plugin = await handler(world, "before_output", "response", answer=response("instead"))
    assert (await world.ask())["text"] == "instead"

    async def silence(body: Item) -> Item:
        return response("")

    plugin.on_stage = silence
    outcome = await world.ask()
    assert (outcome["outcome"], outcome["text"]) == ("answer", "")


async def test_after_output_comes_after_the_outcome_and_can_spoil_nothing(world: World) -> None:
    seen = asyncio.Event()
    plugin = await world.plugin("watcher", stages=[stage("after_output", required=True)])

    async def fail(body: Item) -> Item:
        seen.set()
        raise ValueError("broken")

    plugin.on_stage = fail
    turn_id = await world.submit()
    assert (await world.follow(turn_id))[-1]["outcome"] == "answer"
    await seen.wait()
    await until(lambda: not world.slots.running)
    assert (await world.row(turn_id)).outcome == "answer"
    assert len(world.published("turn.finished")) == 1


@pytest.mark.parametrize("name", [each for each in STAGES if each != "after_output"])
async def test_a_required_handler_that_fails_ends_the_turn_and_one_that_is_not_is_skipped(
    world: World, name: str
) -> None:
    p = await world.plugin("p", tools=[tool("t", idempotent=True)])
    plugin = await handler(world, name, required=True, answer=ValueError("broken"))
    world.provider.scripts += [calls(("t", {})), says("unapproved")]
    outcome = await world.ask()
    assert (outcome["outcome"], outcome["error"]["code"]) == ("error", "unavailable")
    assert f"guard must approve {name}" in outcome["error"]["message"]
    assert "unapproved" not in outcome["text"]
    if name in STAGES[:4]:
        assert not p.calls
    await plugin.register(stages=[stage(name)])
    world.provider.scripts.clear()
    world.provider.scripts += [calls(("t", {})), says("done")]
    assert (await world.ask())["text"] == "done"
    assert {"stage": name, "skipped": ["guard"]}.items() <= world.published("stage")[-1].items()


async def test_a_guard_that_died_still_closes_what_it_guarded(world: World) -> None:
    plugin = await handler(world, "on_input", required=True, answer=changes())
    plugin.die()
    assert (await world.ask())["error"]["code"] == "unavailable"
    world.plugins.forget("guard", 0, for_good=True)
    assert (await world.ask())["outcome"] == "answer"


async def test_nothing_is_shown_before_a_required_guard_has_seen_it(world: World) -> None:
    await handler(world, "before_output", "final_text", required=True, answer=changes(final_text="decent"))
    world.provider.scripts.append(says("inde", "cent"))
    items = await world.follow(await world.submit())
    assert [item["type"] for item in items] == ["started", "outcome"] and items[-1]["text"] == "decent"
    assert not world.published("llm.delta")


async def test_a_required_handler_that_fails_stops_the_other_calls_of_the_group(world: World) -> None:
    cancelled = []
    running = asyncio.Event()
    p = await world.plugin("p", tools=[tool("t", parallel_safe=True, idempotent=True)])

    async def slow(body: Item) -> Item:
        running.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return {}

    p.on_tool = slow
    guard = await world.plugin("guard", stages=[stage("before_toolcall", required=True)])

    async def approve(body: Item) -> Item:
        if body["fields"]["arguments"]["text"] == "bad":
            await running.wait()
            raise ValueError("no")
        return changes()

    guard.on_stage = approve
    world.provider.scripts.append(calls(("t", {"text": "good"}), ("t", {"text": "bad"})))
    assert (await world.ask())["outcome"] == "error"
    assert cancelled == [1]
    assert await stays(lambda: len(p.calls) == 1)


async def test_a_late_handler_is_skipped(world: World) -> None:
    plugin = await world.plugin("slow", stages=[stage("on_input", "raw_message", timeout_s=0.01)])

    async def late(body: Item) -> Item:
        await asyncio.sleep(30)
        return changes(raw_message="too late")

    plugin.on_stage = late
    await world.ask("in time")
    assert world.provider.last[-1]["content"].endswith("in time")
