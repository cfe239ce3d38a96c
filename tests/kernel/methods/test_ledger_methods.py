"""kernel.turn_ids and kernel.forget."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_asyncio

from homeagent_sdk.errors import Invalid
from homeagent_sdk.testing.local_bus import LocalPeer
from kernel.methods.ledger import LedgerMethods
from tests.kernel.world import World, says

SECRET = "zebraquokka77"


@pytest_asyncio.fixture
async def memory(world: World) -> LocalPeer:
    """Return the caller's end: the memory service."""
    LedgerMethods(world.journal, world.rememberer, world.environment.timelines).serve(world.peer)
    return world.bus.peer("another")


async def test_turns_are_given_page_by_page(world: World, memory: LocalPeer) -> None:
    for _ in range(3):
        await world.ask("hello")
    await world.ask("not this one", no_memory=True)
    first = await memory.call("kernel.turn_ids", {"limit": 2})
    rest = await memory.call("kernel.turn_ids", {"after": first["after"]})
    none = await memory.call("kernel.turn_ids", {"after": rest["after"]})
    assert (len(first["turns"]), len(rest["turns"]), none) == (2, 1, {"turns": [], "after": None})
    assert set(first["turns"][0]) == {"id", "time", "told"}


async def test_what_was_forgotten_is_in_no_later_prompt(world: World, memory: LocalPeer) -> None:
    world.provider.scripts.extend([says(f"{SECRET}?"), says("yes")])
    turn_id = await world.submit(f"my word is {SECRET}")
    await world.follow(turn_id)
    answer = await memory.call("kernel.forget", {"ids": [turn_id]})
    assert answer == {"turns": 1, "unfinished": 0, "earlier": 0, "erased": True}
    await world.ask("what is my word?")
    assert SECRET not in str(world.provider.requests[-1])
    history = await world.web.call("kernel.history", {"channel": "webui", "conversation": "c1", "principal": "owner"})
    assert [turn["text"] for turn in history["turns"]] == ["what is my word?"]


async def test_one_that_the_memory_was_not_told_of_is_never_told(world: World, memory: LocalPeer) -> None:
    await world.rememberer.stop()
    turn_id = await world.submit(f"my word is {SECRET}")
    await world.follow(turn_id)
    other = await world.submit("something else")
    await world.follow(other)
    await memory.call("kernel.forget", {"ids": [turn_id]})
    world.rememberer.start()
    assert [event["id"] for event in await world.told()] == [other]


async def test_who_asks_late_for_a_forgotten_turn_is_told_its_outcome(world: World, memory: LocalPeer) -> None:
    first = await world.submit_raw(f"my word is {SECRET}", delivery_id="d1")
    await world.follow(first["turn_id"])
    await memory.call("kernel.forget", {"principal": "owner"})
    again = await world.submit_raw(f"my word is {SECRET}", delivery_id="d1")
    assert again == {"turn_id": first["turn_id"], "status": "duplicate"}
    item = (await world.follow(first["turn_id"]))[-1]
    assert (item["outcome"], item["text"]) == ("answer", "")


async def test_a_look_changes_nothing(world: World, memory: LocalPeer) -> None:
    turn_id = await world.submit("hello")
    await world.follow(turn_id)
    answer = await memory.call("kernel.forget", {"before": 10**12, "dry_run": True})
    assert answer == {"turns": 1, "unfinished": 0, "earlier": 0}
    assert (await world.row(turn_id)).text == "hello"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"ids": []}, "ids"),
        ({"ids": [1]}, "ids"),
        ({"ids": ["x"] * 1001}, "ids"),
        ({"ids": ["x"], "lanes": [["webui", "owner"]]}, "lanes"),
        ({"before": "yesterday"}, "before"),
        ({"principal": 1}, "principal"),
    ],
)
async def test_a_wrong_request_is_refused_by_its_field(memory: LocalPeer, body: Any, field: str) -> None:
    with pytest.raises(Invalid) as raised:
        await memory.call("kernel.forget", body)
    assert raised.value.field == field


@pytest.mark.parametrize("body", [{"after": -1}, {"after": "x"}, {"limit": 0}])
async def test_a_wrong_page_is_refused(memory: LocalPeer, body: Any) -> None:
    with pytest.raises(Invalid):
        await memory.call("kernel.turn_ids", body)
