"""Outputs: what the model sends over channels, and answers that nobody waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homeagent_sdk.errors import Denied, HomeAgentError, Internal, Invalid, TimedOut
from tests.kernel.world import FakePlugin, Item, World, calls, died, says, stage, until

CHAT = {"name": "chat", "description": "A chat network.", "flags": 1}


async def send(world: World, **arguments: Any) -> str:
    """Let the model send; returns what it is told."""
    world.provider.scripts += [calls(("output_send__chat", {"payload": "hello", **arguments})), says("done")]
    assert (await world.ask("tell them"))["text"] == "done"
    return next(str(message["content"]) for message in reversed(world.provider.last) if message["role"] == "tool")


def answers(plugin: FakePlugin, answer: Any) -> None:
    async def output(body: Item) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    plugin.on_output = output


async def test_a_message_that_arrived_is_one_word(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    assert await send(world, meta='{"silent": true}') == "ok"
    (sent,) = chat.sent
    assert sent | {"output_id": ""} == {
        "output_id": "",
        "channel": "chat",
        "payload": "hello",
        "type": "text",
        "meta": {"silent": True},
        "conversation": "",
        "principal": "owner",
    }


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"status": "ok", "note": "a long story"}, "ok"),
        ({"status": "unconfirmed", "note": "queued"}, "not confirmed: queued"),
        ({"status": "unconfirmed"}, "not confirmed"),
        ({"status": "failed", "note": "no such group"}, "failed: no such group"),
        ({"status": "failed"}, "failed"),
        ({"status": "sent!"}, "not confirmed: the channel did not answer with a receipt"),
        (None, "not confirmed: the channel did not answer with a receipt"),
        (["ok"], "not confirmed: the channel did not answer with a receipt"),
        (TimedOut("no answer in 30 s"), "not confirmed: no answer in 30 s; it may have been sent"),
        (Internal("crashed"), "not confirmed: crashed; it may have been sent"),
        (died(sent=True), "not confirmed: it is not there; it may have been sent"),
    ],
)
async def test_receipts_tell_the_truth(world: World, answer: Any, told: str) -> None:
    answers(await world.plugin("chat", outputs=[CHAT]), answer)
    assert await send(world) == told


@pytest.mark.parametrize("error", [died(sent=False), Denied("no"), Invalid("bad")])
async def test_what_was_surely_not_sent_has_failed(world: World, error: HomeAgentError) -> None:
    answers(await world.plugin("chat", outputs=[CHAT]), error)
    assert json.loads(await send(world))["reason"] in ("unavailable", "denied", "invalid")


async def test_types_that_a_channel_cannot_carry_and_broken_options_are_refused(world: World) -> None:
    chat = await world.plugin("chat", outputs=[{**CHAT, "flags": 3}])
    assert "text" in await send(world, type="image")
    for meta in ("{broken", "[1]", '"x"', '{"a": "\\ud800"}', '{"a": 99999999999999999999999}'):
        assert "meta is no JSON object" in await send(world, meta=meta)
    assert not chat.sent


async def test_plugins_see_a_message_before_it_is_sent(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    guard = await world.plugin("guard", stages=[stage("before_output", "final_text", "response")])

    async def soften(body: Item) -> Item:
        return {"changes": {"final_text": body["fields"]["final_text"].replace("hello", "dear all")}}

    guard.on_stage = soften
    assert await send(world) == "ok"
    assert chat.sent[0]["payload"] == "dear all"

    async def empty(body: Item) -> Item:
        return {"changes": {}, "response": "" if body["fields"]["final_text"] == "hello" else None}

    guard.on_stage = empty
    assert "not sent" in await send(world)
    assert len(chat.sent) == 1


async def test_a_required_guard_that_fails_ends_the_turn_and_nothing_is_sent(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    guard = await world.plugin("guard", stages=[stage("before_output", required=True)])

    async def broken(body: Item) -> Item:
        raise ValueError("broken")

    guard.on_stage = broken
    world.provider.scripts += [calls(("output_send__chat", {"payload": "hello"})), says("done")]
    assert (await world.ask())["error"]["code"] == "unavailable"
    assert not chat.sent and len(world.provider.requests) == 1


async def test_every_send_of_a_turn_has_an_id_of_its_own(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    world.provider.scripts += [calls(("output_send__chat", {"payload": text}, "call_0")) for text in "ab"]
    await world.ask()
    assert [body["payload"] for body in chat.sent] == ["a", "b"]
    assert len({body["output_id"] for body in chat.sent}) == 2


async def test_a_send_to_the_channel_that_the_turn_came_from_goes_to_its_conversation(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    world.provider.scripts.append(calls(("output_send__chat", {"payload": "x"})))
    await world.ask(channel="chat", conversation="group 7")
    assert chat.sent[0]["conversation"] == "group 7"


async def test_channels_that_wait_for_the_answer_are_not_offered(world: World) -> None:
    await world.plugin("cli", outputs=[{"name": "cli", "description": "x", "synchronous": True}])
    await world.ask()
    assert [each["name"] for each in world.provider.requests[-1]["request"]["tools"]] == ["get_plugin_tools"]
    await world.plugin("chat", outputs=[CHAT])
    world.provider.scripts.append(calls(("output_list_channels", {}), ("output_send__chat_help", {})))
    await world.ask()
    listed, helped = [m["content"] for m in world.provider.last if m["role"] == "tool"]
    assert json.loads(listed) == [{"channel": "chat", "types": ["text"], "description": "A chat network."}]
    assert "output_send__chat" in helped


# -- answers that nobody waits for --------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.turns.delivery._PAUSE_S", 0.001)


async def self_turn(world: World, **more: Any) -> tuple[str, Item]:
    more = {"channel": "chat", "kind": "self", "level": "L3", **more}
    turn_id = await world.submit("a timer fires", **more)
    return turn_id, (await world.follow(turn_id))[-1]


async def test_the_answer_to_a_timer_is_sent_to_its_channel(world: World) -> None:
    chat = await world.plugin("chat", outputs=[CHAT])
    world.provider.scripts.append(says("tea is ready"))
    turn_id, outcome = await self_turn(world)
    assert outcome["text"] == "tea is ready"
    assert chat.sent == [
        {
            "output_id": turn_id,
            "channel": "chat",
            "payload": "tea is ready",
            "type": "text",
            "meta": {},
            "conversation": "c1",
            "principal": "owner",
        }
    ]
    assert (await world.told())[0]["origin"] == "self"
    assert world.provider.requests[0]["reason"] == "self"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("redelivery", "answer", "times"),
    [
        ("at_most_once", died(sent=False), 4),
        ("at_most_once", {"status": "failed"}, 4),
        ("at_most_once", {"status": "unconfirmed"}, 1),
        ("at_most_once", died(sent=True), 1),
        ("at_most_once", TimedOut("late"), 1),
        ("at_least_once", died(sent=True), 4),
        ("at_least_once", TimedOut("late"), 4),
        ("at_least_once", None, 1),
    ],
)
async def test_it_is_sent_again_where_that_can_do_no_harm(
    world: World, redelivery: str, answer: Any, times: int
) -> None:
    chat = await world.plugin("chat", outputs=[{**CHAT, "redelivery": redelivery}])
    answers(chat, answer)
    _, outcome = await self_turn(world)
    assert outcome["outcome"] == "answer", "the lane's history has it in any case"
    assert len(chat.sent) == times
    assert len({body["output_id"] for body in chat.sent}) == 1


@pytest.mark.usefixtures("quick")
async def test_it_waits_a_while_for_a_channel_that_is_being_restarted(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("kernel.turns.delivery._PAUSE_S", 0.02)
    turn_id = await world.submit("a timer fires", channel="chat", kind="self")
    await until(lambda: world.published("agent_llm_chain"))
    chat = await world.plugin("chat", outputs=[CHAT])
    assert (await world.follow(turn_id))[-1]["outcome"] == "answer"
    assert len(chat.sent) == 1


@pytest.mark.usefixtures("quick")
async def test_a_channel_that_does_not_exist_costs_no_answer(world: World) -> None:
    turn_id, outcome = await self_turn(world, channel="nowhere")
    assert outcome["outcome"] == "answer" and (await world.row(turn_id)).answer == "ok"
