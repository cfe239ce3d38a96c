"""A full timeline: what the memory chooses stays, the rest is archived, and the prompt begins the same in between."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from homeagent_sdk.errors import Invalid, Unavailable
from kernel.prompt.builder import MOVED
from kernel.turns import window
from tests.kernel.world import Item, World, fails, says


async def talk(world: World, count: int, size: int = 20, **more: Any) -> None:
    for number in range(count):
        world.provider.scripts.append(says(f"answer {number}"))
        await world.ask(f"question {number} " + "word " * size, **more)


def narrow(world: World, window_tokens: int) -> None:
    """Give the model a small window, and believe no count of the far end's, which counts nothing."""
    world.provider.sources[0]["context_window"] = window_tokens
    world.environment.correction.learn = lambda *_: None  # type: ignore[method-assign]


def texts(prompt: list[Item]) -> list[str]:
    return [str(message["content"]) for message in prompt]


def is_shown(prompt: list[Item], text: str) -> bool:
    return any(text in content for content in texts(prompt[1:-1]))


async def test_a_turn_that_prunes_nothing_costs_no_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    call = world.peer.call

    async def counted(method: str, *arguments: Any, **more: Any) -> Any:
        called.append(method)
        return await call(method, *arguments, **more)

    monkeypatch.setattr(world.peer, "call", counted)
    await talk(world, 30)
    assert world.memory.windows == []
    assert set(called) == {"memory.recall", "memory.append", "provider.sources"}
    assert called.count("memory.recall") == 30


async def test_a_full_timeline_asks_once_and_then_goes_on_append_only(world: World) -> None:
    prompts = []
    for number in range(60):
        await talk(world, 1, size=number % 7)
        prompts.append(world.provider.last)
    assert 2 <= len(world.memory.windows) <= 6
    changed = sum(after[: len(before) - 1] != before[:-1] for before, after in itertools.pairwise(prompts))
    assert changed == len(world.memory.windows)
    assert all(len(prompt) <= 2 * 30 + 2 for prompt in prompts)


async def test_the_memory_is_told_what_the_kernel_keeps_and_what_it_costs(world: World) -> None:
    await talk(world, 32)
    (asked,) = world.memory.windows
    assert asked["lane"] == {"channel": "webui", "conversation": "c1"}
    assert (asked["principal"], asked["audience"]) == ("owner", ["owner"])
    assert asked["query"].startswith("question 31")
    assert asked["keep"] == [event["id"] for event in world.memory.events[21:31]]
    assert (asked["protected"], asked["max_events"]) == (10, 30)
    assert 0 < asked["keep_tokens"] < asked["budget_tokens"] / 3


async def test_what_the_memory_chose_is_shown_before_the_last_turns_however_old_it_is(world: World) -> None:
    await talk(world, 31)
    world.memory.chosen = [world.memory.events[2]["id"], world.memory.events[5]["id"]]
    await world.ask("now")
    shown = texts(world.provider.last)
    assert len(shown) == 2 + 2 * 12
    assert shown[1].startswith(MOVED)
    assert "question 2 " in shown[1]
    assert shown[2] == "answer 2"
    assert "question 5 " in shown[3]
    assert "question 21 " in shown[5]
    assert "question 30 " in shown[-3]


async def test_events_of_other_lanes_say_when_and_where_they_were(world: World) -> None:
    await world.ask("my bicycle is in the cellar", channel="telegram", conversation="t")
    await world.ask("buy milk", conversation="c2")
    await talk(world, 31)
    world.memory.chosen = [event["id"] for event in world.memory.events[:2]]
    await world.ask("now")
    first, second = texts(world.provider.last)[1], texts(world.provider.last)[3]
    assert ", by telegram] my bicycle is in the cellar" in first
    assert first.removeprefix(MOVED).strip().startswith("[20")
    assert ", by webui, in another conversation] buy milk" in second


async def test_what_is_in_the_timeline_is_not_recalled_as_well(world: World) -> None:
    await world.ask("my bicycle is in the cellar", channel="telegram", conversation="t")
    await talk(world, 31)
    chosen = world.memory.events[0]["id"]
    world.memory.chosen = [chosen]
    await world.ask("now")
    assert chosen in world.memory.recalled[-1]["exclude"]
    assert len(world.memory.recalled[-1]["exclude"]) == 11


async def test_a_prune_is_told_on_the_ring(world: World) -> None:
    await talk(world, 31)
    turn_id = (await world.follow(await world.submit("now")))[-1] and world.memory.recalled[-1]
    assert turn_id
    (event,) = world.published("context.pruned")
    assert (event["channel"], event["conversation"], event["document"]) == ("webui", "c1", "doc-1")
    assert event["count"] == len(world.memory.archived) > 0


async def test_another_person_in_the_same_conversation_has_a_window_of_their_own(world: World) -> None:
    await talk(world, 31)
    await world.ask("now", principal="anna")
    assert world.memory.windows == []
    await world.ask("now")
    assert world.memory.windows[0]["principal"] == "owner"


@pytest.mark.parametrize("error", [Unavailable("it is gone", detail={"bus": True})])
async def test_without_the_memory_nothing_is_forgotten_and_the_next_turn_tries_again(
    world: World, error: Unavailable
) -> None:
    await talk(world, 31)
    world.memory.error = error
    await world.ask("while it is away")
    assert len(world.memory.windows) == 1
    assert not is_shown(world.provider.last, "question 0 ")
    assert is_shown(world.provider.last, "question 30 ")
    assert not is_shown(world.provider.last, MOVED)
    assert world.published("context.pruned") == []
    world.memory.error = None
    world.rememberer.wake()
    await world.told(32)
    world.memory.chosen = [world.memory.events[0]["id"]]
    await world.ask("it is back")
    assert len(world.memory.windows) == 2
    assert is_shown(world.provider.last, "question 0 ")
    assert is_shown(world.provider.last, "while it is away")


async def test_failure_5_fullness_is_judged_by_all_turns_not_by_those_that_are_shown(world: World) -> None:
    narrow(world, 6_000)
    world.memory.error = Unavailable("it is gone")
    await talk(world, 12, size=200)
    for number in range(3):
        before = len(world.memory.windows)
        await world.ask(f"short {number}")
        assert len(world.memory.windows) == before + 1, "what is left out still counts"


async def test_a_slow_memory_holds_a_turn_up_for_a_moment_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(body: Item, call: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(window, "_TIMEOUT_S", 0.05)
    await talk(world, 31)
    world.bus.peers["memory"].serve("memory.window", never)
    assert (await world.ask("now"))["text"] == "ok"
    assert is_shown(world.provider.last, "question 30 ")


@pytest.mark.parametrize("length", [20_000, 300_000])
async def test_one_turn_that_is_too_long_does_not_empty_the_window(world: World, length: int) -> None:
    """Failures 2 and 3 of the original: everything was archived, and then again in every turn."""
    narrow(world, 8_000)
    await talk(world, 5)
    await world.ask("paste " + "x" * length)
    for number in range(3):
        await world.ask(f"after {number}")
        assert is_shown(world.provider.last, "question 4 ")
    assert len(world.memory.windows) == 1


async def test_a_window_of_long_turns_is_not_made_anew_in_every_turn(world: World) -> None:
    narrow(world, 8_000)
    await talk(world, 40, size=400)
    assert len(world.memory.windows) <= 40 / 2
    for request in world.memory.windows:
        assert len(request["keep"]) < 10
        assert request["keep_tokens"] <= request["budget_tokens"] / 3 or len(request["keep"]) == 1


async def test_a_prompt_that_the_model_finds_too_long_is_made_smaller_by_relevance(world: World) -> None:
    narrow(world, 6_000)
    await talk(world, 10, size=150)
    before = len(world.memory.windows)
    world.provider.scripts.append(fails(Invalid("too long", detail={"context_full": True})))
    await world.ask("now")
    assert len(world.memory.windows) == before + 1
    assert len(json.dumps(world.provider.requests[-1])) < len(json.dumps(world.provider.requests[-2]))


async def test_after_a_restart_the_lane_goes_on_and_prunes_again(world: World) -> None:
    await talk(world, 40)
    await world.stop()
    successor = await world.again()
    await successor.ask("now")
    assert is_shown(successor.provider.last, "question 39 ")
    assert (await successor.ask("and again"))["text"] == "ok"
    await successor.stop()


async def test_what_the_memory_was_not_told_yet_is_told_before_it_chooses(world: World) -> None:
    held, append = asyncio.Event(), world.memory._append

    async def slow(body: Item, call: Any) -> Item:
        await held.wait()
        return await append(body, call)

    await talk(world, 30)
    world.bus.peers["memory"].serve("memory.append", slow)
    await talk(world, 1)
    asyncio.get_running_loop().call_later(0.05, held.set)
    await world.ask("now")
    (asked,) = world.memory.windows
    assert len(world.memory.events) >= 31, "the window was asked for when the last turn was known"
    assert asked["keep"][-1] == world.memory.events[30]["id"]
