"""What those who follow a turn are told."""

from __future__ import annotations

import asyncio
from typing import Any

from kernel.turns.feed import MAX_FOLLOWERS, TurnFeed

OUTCOME = {"type": "outcome", "outcome": "answer", "text": "done"}


async def all_of(feed: TurnFeed) -> list[dict[str, Any]]:
    return [item async for item in feed.follow()]


async def test_an_early_and_a_late_follower_read_the_same_text() -> None:
    feed = TurnFeed()
    early = asyncio.create_task(all_of(feed))
    await asyncio.sleep(0)
    feed.start()
    feed.delta("Hel")
    late = asyncio.create_task(all_of(feed))
    await asyncio.sleep(0)
    feed.delta("lo")
    feed.tool("echo", "started")
    feed.close(OUTCOME)
    for items in await asyncio.gather(early, late):
        assert "".join(item["text"] for item in items if item["type"] == "delta") == "Hello"
        assert items[0] == {"type": "started"} and items[-1] == OUTCOME


async def test_a_follower_of_a_closed_turn_gets_its_outcome() -> None:
    feed = TurnFeed()
    feed.close(OUTCOME)
    assert await all_of(feed) == [OUTCOME]


async def test_reset_withdraws_the_text_and_says_so_once() -> None:
    feed = TurnFeed()
    reading = asyncio.create_task(all_of(feed))
    await asyncio.sleep(0)
    feed.reset()
    feed.delta("wrong")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    feed.reset()
    feed.reset()
    feed.delta("right")
    assert feed.text == "right"
    feed.close(OUTCOME)
    kinds = [(item["type"], item.get("text")) for item in await reading]
    assert kinds == [("delta", "wrong"), ("reset", None), ("delta", "right"), ("outcome", "done")]


async def test_text_that_nobody_had_read_when_it_was_withdrawn_is_not_sent() -> None:
    feed = TurnFeed()
    items = feed.follow()
    feed.start()
    assert await anext(items) == {"type": "started"}
    feed.delta("wrong")
    feed.reasoning("hm")
    feed.reset()
    feed.delta("wrong again")
    feed.reset()
    feed.delta("right")
    feed.close(OUTCOME)
    rest = [(item["type"], item.get("text")) async for item in items]
    assert rest == [("reset", None), ("delta", "right"), ("outcome", "done")]


async def test_nothing_follows_the_outcome() -> None:
    feed = TurnFeed()
    items = feed.follow()
    feed.start()
    await anext(items)
    feed.delta("the answer")
    feed.close(OUTCOME)
    feed.reset()
    assert [item["type"] async for item in items] == ["delta", "outcome"]


async def test_thoughts_alone_are_withdrawn_too() -> None:
    feed = TurnFeed()
    reading = asyncio.create_task(all_of(feed))
    await asyncio.sleep(0)
    feed.reasoning("hm")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    feed.reset()
    feed.close(OUTCOME)
    assert [item["type"] for item in await reading] == ["reasoning", "reset", "outcome"]


async def test_a_full_queue_loses_tool_activity_but_no_text_and_no_reset() -> None:
    feed = TurnFeed()
    items = feed.follow()
    feed.start()
    await anext(items)
    for _ in range(600):
        feed.tool("t", "started")
    feed.delta("old ")
    feed.reset()
    for _ in range(300):
        feed.delta("x")
        feed.reasoning("y")
    feed.close(OUTCOME)
    rest = [item async for item in items]
    assert "".join(item["text"] for item in rest if item["type"] == "delta") == "x" * 300
    assert [item["type"] for item in rest].count("reset") == 1 and len(rest) < 520


async def test_who_wants_the_outcome_alone_is_sent_nothing_else() -> None:
    feed = TurnFeed()
    items = feed.follow(outcome_only=True)
    feed.start()
    feed.delta("text")
    feed.close(OUTCOME)
    feed.close({"type": "outcome", "outcome": "error"})
    assert [item async for item in items] == [OUTCOME]


async def test_a_follower_that_goes_away_leaves_nothing_behind() -> None:
    feed = TurnFeed()
    for _ in range(MAX_FOLLOWERS):
        items = feed.follow()
        feed.start()
        assert await anext(items) == {"type": "started"}
        await items.aclose()
    assert feed.has_room and not feed._followers


async def test_a_slow_follower_costs_one_growing_item_and_always_gets_the_outcome() -> None:
    feed = TurnFeed()
    items = feed.follow()
    feed.start()
    assert await anext(items) == {"type": "started"}
    for number in range(5000):
        feed.delta("x")
        if number % 2:
            feed.tool("t", "started")
    feed.close(OUTCOME)
    rest = [item async for item in items]
    assert len(rest) <= 514 and rest[-1] == OUTCOME
