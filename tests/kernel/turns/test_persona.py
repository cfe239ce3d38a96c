"""The persona in turns: who is asked for it, how the model writes it down, and that the prompt's beginning stays."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Invalid, NotFound
from kernel.config.core_settings import PERSONA
from kernel.prompt.builder import FIRST_RUN
from kernel.prompt.persona import ASK_AGAIN_AFTER_S, COMMAND, MOST_BYTES
from tests.kernel.world import Item, World, calls, says, stage

PIRATE = "You are a pirate, and say arr."


@pytest.fixture
async def new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A kernel whose owner has not chosen a persona."""
    # There is no channel here that a timer's answer could go to, which is tried again at length.
    monkeypatch.setattr("kernel.turns.delivery._PAUSE_S", 0.001)
    made = await World(tmp_path, has_persona=False).start()
    yield made
    await made.stop()


def choose(mode: str, **more: Any) -> Any:
    return calls(("persona_set", {"mode": mode, **more}))


def fixed(request: Item) -> str:
    return str(request["request"]["messages"][0]["content"])


def input_of(request: Item) -> str:
    """The input as the model got it."""
    return str([each for each in request["request"]["messages"] if each["role"] == "user"][-1]["content"])


def tools_of(request: Item) -> list[str]:
    return [each["name"] for each in request["request"]["tools"]]


def is_asked(request: Item) -> bool:
    assert (FIRST_RUN in input_of(request)) == ("persona_set" in tools_of(request))
    return FIRST_RUN in input_of(request)


def receipt(world: World) -> str:
    return str([message["content"] for message in world.provider.last if message["role"] == "tool"][-1])


async def test_what_the_owner_chose_is_in_the_next_request_and_in_all_that_follow(new_world: World) -> None:
    new_world.provider.scripts += [choose("custom", content=PIRATE), says("arr")]
    assert (await new_world.ask("be a pirate"))["text"] == "arr"
    first, second = new_world.provider.requests
    assert PERSONA in fixed(first) and PIRATE not in fixed(first)
    assert PIRATE in fixed(second) and PERSONA not in fixed(second)
    assert receipt(new_world) == "ok"
    await new_world.ask("hello", conversation="another")
    assert PIRATE in fixed(new_world.provider.requests[-1])
    assert not any(map(is_asked, new_world.provider.requests[1:]))


async def test_it_outlives_a_crash_of_the_kernel(new_world: World) -> None:
    new_world.provider.scripts += [choose("custom", content=PIRATE), says("arr")]
    await new_world.ask()
    await new_world.crash()
    successor = await new_world.again()
    await successor.ask()
    assert PIRATE in fixed(successor.provider.requests[-1])
    assert not is_asked(successor.provider.requests[-1])
    await successor.stop()


async def test_the_fixed_part_is_the_same_from_turn_to_turn_whoever_speaks_and_whether_asked_or_not(
    new_world: World,
) -> None:
    await new_world.ask("one")
    await new_world.ask("two")
    await new_world.ask("three", principal="anna", conversation="hers")
    new_world.provider.scripts += [choose("default"), says("fine")]
    await new_world.ask("the default one")
    await new_world.ask("four")
    assert len({fixed(request) for request in new_world.provider.requests}) == 1
    last = new_world.provider.last
    assert [each["content"] for each in last if each["role"] == "user"][:-1] == ["one", "two", "the default one"]


async def test_only_the_owner_in_person_is_asked(new_world: World) -> None:
    await new_world.ask("hi")
    await new_world.ask("hi", principal="anna", conversation="hers")
    await new_world.ask("timer", kind="self", conversation="timer")
    await new_world.ask("quietly", level="L1", conversation="background")
    await new_world.ask("hi again")
    assert [is_asked(request) for request in new_world.provider.requests] == [True, False, False, False, True]


async def test_a_model_without_tools_is_not_told_to_call_one(new_world: World) -> None:
    new_world.provider.sources[0]["tools"] = False
    await new_world.ask("hi")
    assert not is_asked(new_world.provider.requests[-1])


async def test_after_the_default_was_chosen_nobody_is_asked_again(new_world: World) -> None:
    new_world.provider.scripts += [choose("default"), says("fine")]
    await new_world.ask()
    assert receipt(new_world) == "ok"
    new_world.now = lambda: time.time() + 1000 * ASK_AGAIN_AFTER_S
    await new_world.ask()
    assert [is_asked(request) for request in new_world.provider.requests] == [True, False, False]


async def test_after_later_the_owner_is_asked_again_in_a_week(new_world: World) -> None:
    new_world.provider.scripts += [choose("later"), says("fine")]
    await new_world.ask()
    assert receipt(new_world) == "ok"
    await new_world.ask()
    new_world.now = lambda: time.time() + ASK_AGAIN_AFTER_S - 60
    await new_world.ask()
    new_world.now = lambda: time.time() + ASK_AGAIN_AFTER_S
    await new_world.ask()
    assert [is_asked(request) for request in new_world.provider.requests] == [True, False, False, False, True]


@pytest.mark.parametrize(
    "who",
    [
        {"principal": "anna", "conversation": "hers"},
        {"kind": "self", "conversation": "timer"},
        {"level": "L1", "conversation": "background"},
    ],
)
async def test_others_and_timers_are_refused(new_world: World, who: dict[str, str]) -> None:
    for mode in ("custom", "default", "later"):
        content = {"content": PIRATE} if mode == "custom" else {}
        new_world.provider.scripts += [choose(mode, **content), says("I may not")]
        await new_world.ask("be a pirate", **who)
        told = json.loads(receipt(new_world))
        assert told["reason"] == "denied" and "only the owner" in told["detail"]
    assert (new_world.persona.text, new_world.persona.is_choice_open) == (PERSONA, True)


async def test_once_chosen_the_tool_is_a_line_in_the_catalogue_that_can_be_fetched(world: World) -> None:
    world.provider.scripts += [
        calls(("get_plugin_tools", {"plugin_name": "kernel"})),
        choose("custom", content=PIRATE),
        says("arr"),
    ]
    await world.ask("be a pirate from now on")
    requests = world.provider.requests
    assert "\nkernel (1 tool): persona_set: " in fixed(requests[0])
    assert [tools_of(request) for request in requests] == [
        ["get_plugin_tools"],
        ["get_plugin_tools", "persona_set"],
        ["get_plugin_tools", "persona_set"],
    ]
    assert PIRATE in fixed(requests[-1])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "custom"}, "needs content"),
        ({"mode": "custom", "content": " \n"}, "needs content"),
        ({"mode": "default", "content": PIRATE}, "takes no content"),
        ({"mode": "custom", "content": "x" * (MOST_BYTES + 1)}, "at most 16384"),
        ({"mode": "funny"}, "invalid arguments"),
        ({}, "invalid arguments"),
    ],
)
async def test_a_wrong_call_is_explained_and_changes_nothing(
    new_world: World, arguments: dict[str, Any], reason: str
) -> None:
    new_world.provider.scripts += [calls(("persona_set", arguments)), says("sorry")]
    await new_world.ask()
    assert reason in receipt(new_world)
    assert (new_world.persona.text, new_world.persona.is_choice_open) == (PERSONA, True)


async def test_receipts_tell_when_there_was_nothing_to_do(world: World) -> None:
    await world.persona.set(PIRATE, COMMAND)
    world.provider.scripts += [choose("custom", content=PIRATE), choose("later"), says("well")]
    await world.ask()
    assert [message["content"] for message in world.provider.last if message["role"] == "tool"] == [
        "ok: it was so already",
        "nothing to do: the owner has chosen already",
    ]


async def test_what_a_plugin_made_of_the_context_stays_for_the_turn(new_world: World) -> None:
    plugin = await new_world.plugin("p", stages=[stage("pre_action", "context_messages")])

    async def rewrite(body: Item) -> Item:
        return {"changes": {"context_messages": [{"role": "user", "content": "rewritten"}]}, "response": None}

    plugin.on_stage = rewrite
    new_world.provider.scripts += [choose("custom", content=PIRATE), says("arr")]
    await new_world.ask()
    assert new_world.provider.last[0] == {"role": "user", "content": "rewritten"}
    assert new_world.persona.text == PIRATE


async def test_the_command_shows_sets_and_resets_it(world: World) -> None:
    operator = world.bus.peer("operator-1", "operator")
    answer = await operator.call("kernel.persona_set", {"content": PIRATE, "origin": "file"})
    assert answer["changed"] and answer["content"] == PIRATE and answer["tokens"] > 5
    assert not (await operator.call("kernel.persona_set", {"content": PIRATE}))["changed"]
    assert (await operator.call("kernel.persona_get"))["origin"] == "file"
    assert (await operator.call("kernel.persona_set", {"content": "a", "origin": "personal.md"}))["changed"]
    await operator.call("kernel.persona_set", {"content": PIRATE})
    assert not (await operator.call("kernel.persona_set", {"content": "a", "origin": "personal.md"}))["changed"]
    assert (await operator.call("kernel.persona_reset"))["content"] == PERSONA
    assert (await operator.call("kernel.persona_get", {"previous": True}))["content"] == PIRATE


async def test_wrong_requests_of_the_command_are_refused(world: World) -> None:
    operator = world.bus.peer("operator-1", "operator")
    for body in ({}, {"content": 5}, {"content": "x" * 20_000}, {"content": "x", "origin": "conversation"}, []):
        with pytest.raises(Invalid):
            await operator.call("kernel.persona_set", body)
    with pytest.raises(NotFound):
        await operator.call("kernel.persona_get", {"previous": True})
