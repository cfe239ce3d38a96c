"""A conversation of two hundred turns: the prompt stays bounded, and its beginning the same as long as it can."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from pathlib import Path

import pytest

from tests.kernel.world import Item, World, says, tool


def beginning(before: list[Item], after: list[Item]) -> int:
    """How many messages two prompts have in common before they part."""
    return next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
    )


async def test_at_200_turns_the_prompt_is_bounded_and_begins_the_same_between_prunes(world: World) -> None:
    prompts: list[list[Item]] = []
    for number in range(200):
        world.provider.scripts.append(says(f"answer {number} " + "word " * 30))
        await world.ask(f"question {number} " + "word " * 30)
        prompts.append(world.provider.last)
    sizes = [len(json.dumps(prompt)) for prompt in prompts]
    assert max(sizes[40:]) <= max(sizes[:40]) * 1.05
    prunes = 0
    for before, after in itertools.pairwise(prompts):
        if beginning(before, after) < len(before) - 1:
            prunes += 1
    assert 5 <= prunes <= 25, "a third goes at once, so that the rest is cached meanwhile"
    assert len({prompt[0]["content"] for prompt in prompts}) == 1


async def test_a_small_window_is_kept_whatever_is_said(world: World) -> None:
    world.provider.sources[0]["context_window"] = 4096
    for number in range(60):
        world.provider.scripts.append(says("词" * 200, usage={"prompt_tokens": 0}))
        await world.ask(f"{number} " + "长" * (number * 37 % 1500))
        messages = world.provider.last
        assert len("".join(message["content"] for message in messages)) / 1.4 < 4096


async def test_the_fixed_part_never_depends_on_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.plugin("wide", tools=[{"name": "wide", "description": "long " * 900}])
    await world.ask("today")
    today = world.provider.last[0]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 400 * 86400)
    world.methods._wall_clock = time.time
    await world.ask("next year", conversation="c2", principal="anna")
    assert world.provider.last[0] == today
    assert world.provider.last[-1]["content"] != world.provider.last[0]["content"]


async def test_a_conversation_looks_the_same_after_a_restart(world: World) -> None:
    await world.plugin("p", tools=[tool("t")])
    for number in range(5):
        await world.ask(f"question {number}")
    world.provider.scripts.append(says())
    await world.ask("say nothing")
    await world.ask("before")
    before = world.provider.last
    await world.stop()
    successor = await world.again()
    await successor.ask("after")
    assert successor.provider.last[1 : len(before) - 1] == before[1:-1]
    await successor.stop()


async def test_the_request_for_hi_is_small(world: World) -> None:
    await world.ask("hi")
    assert len(json.dumps(world.provider.requests[0]["request"])) < 3000


async def test_the_kernels_own_share_of_a_plain_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No limit is asserted, since other work on the machine would decide it; ``pytest -rP`` shows the numbers."""
    world = await World(tmp_path).start()
    shares, steps = [], {}
    for number in range(60):
        began = time.perf_counter()
        await world.ask(f"question {number}")
        shares.append((time.perf_counter() - began) * 1000)
        for name, ms in world.published("turn.finished")[-1]["step_ms"].items():
            steps.setdefault(name, []).append(ms)
    print(f"whole turn over the bus in memory: p50 {statistics.median(shares):.2f} ms, p95 {sorted(shares)[56]:.2f} ms")
    print({name: round(statistics.median(values), 2) for name, values in steps.items()})
    assert len(shares) == 60
    await world.stop()
