"""kernel.submit, follow, history, conversations, stop: what channels may ask and what they get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Conflict, Denied, Invalid, NotFound, Overloaded
from kernel.turns.feed import MAX_FOLLOWERS
from kernel.turns.frame import TurnFrame
from tests.kernel.world import World, calls, cancelled, says, stays, tool, until, waits

HERE = {"channel": "webui", "conversation": "c1"}


async def test_a_repeated_delivery_gets_the_first_ones_turn(world: World) -> None:
    first = await world.submit_raw("pay the bill", delivery_id="d1")
    again = await world.submit_raw("pay the bill", delivery_id="d1")
    assert first["status"] == "accepted" and again == {"turn_id": first["turn_id"], "status": "duplicate"}
    await world.follow(first["turn_id"])
    assert await world.submit_raw("pay the bill", delivery_id="d1") == again
    assert len(world.provider.requests) == 1
    elsewhere = await world.submit_raw("pay the bill", delivery_id="d1", channel="cli")
    assert elsewhere["status"] == "accepted"


async def test_many_deliveries_at_once_are_one_turn(world: World) -> None:
    answers = await asyncio.gather(*(world.submit_raw("once", delivery_id="d1") for _ in range(10)))
    assert len({answer["turn_id"] for answer in answers}) == 1
    assert sorted(answer["status"] for answer in answers) == ["accepted"] + ["duplicate"] * 9
    outcomes = await asyncio.gather(*(world.follow(answer["turn_id"]) for answer in answers))
    assert {items[-1]["text"] for items in outcomes} == {"ok"} and len(world.provider.requests) == 1


async def test_the_delivery_id_of_somebody_else_gives_nothing_away(world: World) -> None:
    await world.submit_raw("my secret", delivery_id="d1")
    with pytest.raises(Conflict, match="is taken") as raised:
        await world.submit_raw("what did they say?", delivery_id="d1", principal="anna")
    assert raised.value.field == "delivery_id"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": " \n\t\u3000\u2003 "}, "text"),
        ({"text": None}, "text"),
        ({"text": 5}, "text"),
        ({"text": "x" * (4 * 1024 * 1024 + 1)}, "text"),
        ({"channel": "Web UI"}, "channel"),
        ({"channel": ""}, "channel"),
        ({"conversation": ""}, "conversation"),
        ({"conversation": "c" * 201}, "conversation"),
        ({"principal": ""}, "principal"),
        ({"kind": "system"}, "kind"),
        ({"level": "L5"}, "level"),
        ({"no_memory": "yes"}, "no_memory"),
        ({"delivery_id": "d" * 201}, "delivery_id"),
        ({"speaker": 7}, "speaker"),
    ],
)
async def test_what_is_wrong_is_named(world: World, body: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as raised:
        await world.submit_raw(**{"text": "hi", **body})
    assert raised.value.field == field


@pytest.mark.parametrize("body", [None, [], "text", 7])
async def test_a_body_that_is_no_map_is_refused(world: World, body: Any) -> None:
    for method in ("submit", "stop", "history", "conversations"):
        with pytest.raises(Invalid):
            await world.web.call(f"kernel.{method}", body)


async def test_an_unknown_principal_is_denied(world: World) -> None:
    with pytest.raises(Denied) as raised:
        await world.submit(principal="nobody")
    assert raised.value.field == "principal" and "homeagent principal list" in str(raised.value)


async def test_an_unknown_model_is_not_found_and_one_just_added_is(world: World) -> None:
    with pytest.raises(NotFound) as raised:
        await world.submit(model="gpt-9")
    assert raised.value.field == "model"
    world.provider.sources.append({"name": "new", "model": "gpt-9", "context_window": 8000, "state": "ready"})
    assert (await world.ask(model="gpt-9"))["outcome"] == "answer"
    assert world.provider.requests[-1]["request"]["model"] == "gpt-9"
    for name in ("auto", "homeagent", "", "fake-model", None):
        assert (await world.ask(model=name))["outcome"] == "answer"


async def test_without_any_known_source_a_model_is_not_judged(world: World) -> None:
    world.provider.sources = []
    assert (await world.ask(model="anything"))["outcome"] == "answer"


async def test_an_external_plugin_speaks_for_itself_alone(world: World) -> None:
    foreign = world.bus.peer("foreign", "external")
    turn_id = await world.submit("let me in", foreign, principal="owner", level="L4", kind="self")
    await world.follow(turn_id)
    row = await world.row(turn_id)
    frame = TurnFrame.unpack(row.frame, row.schema_version)
    assert (frame.principal, frame.level, frame.kind) == ("plugin:foreign", "L3", "user")
    assert (await world.told())[0]["visibility"] == {"principals": ["plugin:foreign"]}
    low = await world.submit("quietly", foreign, level="L1")
    await world.follow(low)
    row = await world.row(low)
    assert TurnFrame.unpack(row.frame, row.schema_version).level == "L1"


async def test_a_full_queue_refuses_before_it_accepts(tmp_path: Path) -> None:
    world = await World(tmp_path, {"core.agent.queue_limit": "2"}).start()
    never = asyncio.Event()
    world.provider.scripts.append(waits(never))
    running = await world.submit("running")
    await until(lambda: world.provider.requests)
    answers = await asyncio.gather(*(world.submit_raw(str(n)) for n in range(5)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert len(refused) == 3 and "queue full: 2" in refused[0].message
    assert (await world.journal.counts()).unfinished == 3
    never.set()
    assert (await world.follow(running))[-1]["outcome"] == "answer"
    await until(lambda: not world.lanes.waiting)
    await world.ask("there is room again")
    await world.stop()


@pytest.mark.parametrize(
    "text", ["a\x00b", "\x00", "𝔘𝔫𝔦", "🏳️‍🌈" * 100, "\u202egnirts", "x\r\ny", "</memory>", "\ufeff"]
)
async def test_odd_texts_come_through_unchanged(world: World, text: str) -> None:
    turn_id = await world.submit(text)
    assert (await world.follow(turn_id))[-1]["outcome"] == "answer"
    assert (await world.row(turn_id)).text == text
    assert world.provider.last[-1]["content"].endswith(f"\n{text}")
    assert (await world.told())[0]["input"] == text
    (turn,) = (await world.web.call("kernel.history", {**HERE, "principal": "owner"}))["turns"]
    assert turn["text"] == text


async def test_the_longest_input_is_taken_and_forgets_no_conversation(world: World) -> None:
    await world.ask("my cat is Tom")
    assert (await world.ask("汉" * 4 * 1024 * 1024))["outcome"] == "answer"
    assert world.memory.recalled[-1]["budget_tokens"] == 1, "less than that the memory refuses"
    await world.ask("and what is my cat called?")
    assert "my cat is Tom" in str(world.provider.last) and len(str(world.provider.last)) < 100_000


# -- following ----------------------------------------------------------------------------------------------------


async def test_early_and_late_followers_get_the_same(world: World) -> None:
    go, started = asyncio.Event(), asyncio.Event()
    world.provider.scripts.append(waits(go, "one ", "two ", then="", started=started))
    turn_id = await world.submit()
    early = asyncio.create_task(world.follow(turn_id))
    await started.wait()
    late = asyncio.create_task(world.follow(turn_id))
    await asyncio.sleep(0.01)
    go.set()
    for items in await asyncio.gather(early, late):
        assert "".join(item["text"] for item in items if item["type"] == "delta") == "one two "
        assert items[0]["type"] == "started" and items[-1]["text"] == "one two "
    assert (await world.follow(turn_id))[-1]["text"] == "one two "


async def test_a_turn_that_there_is_not_cannot_be_followed(world: World) -> None:
    with pytest.raises(NotFound, match="no turn nowhere"):
        await world.follow("nowhere")
    with pytest.raises(Invalid):
        await world.follow("")


async def test_too_many_followers_are_refused_until_one_goes(world: World) -> None:
    never = asyncio.Event()
    world.provider.scripts.append(waits(never))
    turn_id = await world.submit()
    followers = [asyncio.create_task(world.follow(turn_id)) for _ in range(MAX_FOLLOWERS)]
    feed = world.machine.feed(turn_id)
    assert feed is not None
    await until(lambda: not feed.has_room)
    with pytest.raises(Overloaded):
        await world.follow(turn_id)
    await cancelled(followers.pop())
    assert feed.has_room
    never.set()
    assert (await world.follow(turn_id))[-1]["outcome"] == "answer"
    await asyncio.gather(*followers)


async def test_followers_and_finishing_race_without_loss(world: World) -> None:
    async def follow_soon(turn_id: str, turns_of_the_loop: int) -> Any:
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        return (await world.follow(turn_id))[-1]

    for number in range(10):
        turn_id = await world.submit(f"race {number}")
        outcomes = await asyncio.gather(*(follow_soon(turn_id, wait) for wait in range(0, 120, 3)))
        assert {outcome["text"] for outcome in outcomes} == {"ok"}
    await until(lambda: not world.machine._feeds)


# -- stop, history, conversations ---------------------------------------------------------------------------------


async def test_stop_means_this_conversation(world: World) -> None:
    never = asyncio.Event()
    world.provider.scripts += [waits(never), waits(never, then="done")]
    await world.submit("one")
    await until(lambda: world.provider.requests)
    other = await world.submit("other", conversation="c2")
    await until(lambda: len(world.provider.requests) == 2)
    assert await world.web.call("kernel.stop", HERE) == {"stopped": True}
    assert await world.web.call("kernel.stop", {"channel": "webui", "conversation": "c3"}) == {"stopped": False}
    never.set()
    assert (await world.follow(other))[-1]["text"] == "done"


async def test_history_and_conversations_are_each_principals_own(world: World) -> None:
    await world.ask("hers", principal="anna")
    await world.ask("his first")
    await world.ask("his second")
    await world.ask("elsewhere", conversation="c2")
    history = await world.web.call("kernel.history", {**HERE, "principal": "owner"})
    assert [(turn["text"], turn["answer"], turn["outcome"], turn["kind"]) for turn in history["turns"]] == [
        ("his first", "ok", "answer", "user"),
        ("his second", "ok", "answer", "user"),
    ]
    assert set(history["turns"][0]) == {"turn_id", "time", "text", "answer", "outcome", "kind"}
    limited = await world.web.call("kernel.history", {**HERE, "principal": "owner", "limit": 1})
    assert [turn["text"] for turn in limited["turns"]] == ["his second"]
    annas = await world.web.call("kernel.conversations", {"channel": "webui", "principal": "anna"})
    assert [each["title"] for each in annas["conversations"]] == ["hers"]
    his = await world.web.call("kernel.conversations", {"channel": "webui", "principal": "owner"})
    assert [(each["conversation"], each["title"]) for each in his["conversations"]] == [
        ("c2", "elsewhere"),
        ("c1", "his first"),
    ]
    for limit in (0, -1, 1001, True, "9"):
        with pytest.raises(Invalid):
            await world.web.call("kernel.history", {**HERE, "principal": "owner", "limit": limit})


async def test_in_one_lane_no_prompt_shows_what_another_principal_said(world: World) -> None:
    await world.ask("my pin is 4711")
    await world.ask("what was said here?", principal="anna")
    assert "4711" not in str(world.provider.last)
    await world.ask("what did I say?")
    assert "4711" in str(world.provider.last) and "what was said here?" not in str(world.provider.last)


async def test_history_shows_what_is_still_running(world: World) -> None:
    world.provider.scripts.append(waits(asyncio.Event()))
    await world.submit("in progress")
    await until(lambda: world.provider.requests)
    (turn,) = (await world.web.call("kernel.history", {**HERE, "principal": "owner"}))["turns"]
    assert (turn["answer"], turn["outcome"]) == (None, None)


async def test_different_conversations_run_at_the_same_time(world: World) -> None:
    never = asyncio.Event()
    world.provider.scripts += [waits(never, then="late") for _ in range(4)]
    turns = [await world.submit(conversation=f"c{n}") for n in range(6)]
    await until(lambda: len(world.provider.requests) == 4)
    assert await stays(lambda: len(world.provider.requests) == 4)
    urgent = await world.submit("urgent", conversation="u", level="L3")
    assert (await world.follow(urgent))[-1]["text"] == "ok"
    never.set()
    assert {(await world.follow(turn_id))[-1]["outcome"] for turn_id in turns} == {"answer"}


# -- status -------------------------------------------------------------------------------------------------------


async def test_status_has_the_shape_that_others_rely_on(world: World) -> None:
    host = world.bus.peer("host")

    async def plugins(body: Any, call: Any) -> Any:
        return {"plugins": [{"name": "echo", "state": "running", "reason": None, "pid": 1}]}

    host.serve("host.plugins", plugins)
    await world.plugin("chat", outputs=[{"name": "chat", "description": "x"}])
    await world.ask()
    world.provider.scripts.append(waits(asyncio.Event()))
    await world.submit()
    await until(lambda: len(world.provider.requests) == 2)
    await world.submit()
    status = await world.web.call("kernel.status", {})
    assert set(status) == {
        "version",
        "epoch",
        "started_at",
        "ready",
        "services",
        "plugins",
        "turns",
        "channels",
    }
    assert status["ready"] is True
    assert [each["name"] for each in status["services"]] == [
        "kernel",
        "memory_service",
        "provider_service",
        "plugin_host",
    ]
    assert status["plugins"] == [{"name": "echo", "state": "running", "detail": ""}]
    turns = status["turns"]
    assert (turns["running"], turns["waiting"], turns["finished"], turns["unfinished"]) == (1, 1, 1, 2)
    assert status["channels"] == ["chat"]
    world.peer_states.pop("memory")
    status = await world.web.call("kernel.status", {})
    assert status["ready"] is False
    assert {"name": "memory_service", "state": "restarting", "detail": ""} in status["services"]


async def test_status_without_a_plugin_host_answers_all_the_same(world: World) -> None:
    world.peer_states["host"] = "suspect"
    assert (await world.web.call("kernel.status", {}))["plugins"] == []
    world.peer_states["host"] = "running"
    status = await world.web.call("kernel.status", {})
    assert status["plugins"][0]["state"] == "unknown" and status["ready"] is False


async def test_a_tool_call_is_one_turn_in_the_history(world: World) -> None:
    await world.plugin("p", tools=[tool("t")])
    world.provider.scripts += [calls(("t", {})), says("done")]
    await world.ask()
    turns = (await world.web.call("kernel.history", {**HERE, "principal": "owner"}))["turns"]
    assert [turn["answer"] for turn in turns] == ["done"]
