"""A message comes in, the model answers: who is told what, and what is recorded."""

from __future__ import annotations

import asyncio

import pytest

from homeagent_sdk.errors import Invalid, TimedOut, Unavailable
from tests.kernel.world import World, calls, done, fails, says, until, waits


async def test_a_plain_answer_reaches_everybody_once(world: World) -> None:
    world.provider.scripts.append(says("Hel", "lo!"))
    turn_id = await world.submit("hi")
    items = await world.follow(turn_id)
    assert items[0] == {"type": "started"}
    assert "".join(item["text"] for item in items if item["type"] == "delta") == "Hello!"
    assert items[-1] == {
        "type": "outcome",
        "outcome": "answer",
        "text": "Hello!",
        "error": None,
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "cached_tokens": 4},
        "model": "fake-model",
        "finish_reason": "stop",
        "partial": False,
    }
    row = await world.row(turn_id)
    assert (row.outcome, row.answer, row.step, row.text) == ("answer", "Hello!", "done", "hi")
    (event,) = await world.told()
    assert event | {"time": 0} == {
        "id": turn_id,
        "lane": {"channel": "webui", "conversation": "c1"},
        "principal": "owner",
        "speaker": "owner",
        "visibility": {"principals": ["owner"]},
        "time": 0,
        "input": "hi",
        "response": "Hello!",
        "tools_used": [],
        "tool_results": [],
        "origin": "user",
        "no_memory": False,
    }
    await until(lambda: world.published("turn.finished"))
    topics = [event.topic for event in world.bus.events]
    assert topics == ["turn.accepted", "turn.started", "llm.delta", "agent_llm_chain", "turn.finished"]


async def test_a_turn_that_finished_is_told_again_to_who_asks_late(world: World) -> None:
    turn_id = await world.submit()
    first = await world.follow(turn_id)
    await until(lambda: world.machine.feed(turn_id) is None)
    assert await world.follow(turn_id) == [first[-1]]
    assert await world.follow(turn_id, outcome_only=True) == [first[-1]]


async def test_usage_adds_up_over_all_calls_of_a_turn(world: World) -> None:
    await world.plugin("echo", tools=[{"name": "echo", "description": "x"}])
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "cached_tokens": None}
    world.provider.scripts += [calls(("echo", {}), usage=usage), says("done", usage=usage)]
    outcome = await world.ask()
    assert outcome["usage"] == {
        "prompt_tokens": 200,
        "completion_tokens": 20,
        "total_tokens": 220,
        "cached_tokens": 0,
    }


async def test_the_memory_is_told_nothing_of_a_turn_without_memory(world: World) -> None:
    await world.ask("secret", no_memory=True)
    await world.ask("open")
    events = await world.told()
    assert [event["input"] for event in events] == ["open"]
    await world.rememberer.stop()
    assert (await world.journal.counts()).unremembered == 0


async def test_recalled_memories_stand_before_the_input_and_the_timeline_is_excluded(world: World) -> None:
    first = await world.submit("my cat is Tom")
    await world.follow(first)
    world.memory.hits = [{"id": "e1", "time": 0, "speaker": "Anna", "text": "the dog is Rex", "reply": "noted"}]
    await world.ask("and the dog?")
    last = world.provider.last[-1]["content"]
    assert last.index("the dog is Rex") < last.index("and the dog?")
    assert world.memory.recalled[-1]["exclude"] == [first]
    assert world.memory.recalled[-1]["audience"] == ["owner"]


async def test_nothing_in_the_memory_is_said_so(world: World) -> None:
    await world.ask("hi")
    assert "Nothing in the memory matches" in world.provider.last[-1]["content"]


@pytest.mark.parametrize("error", [Unavailable("gone", detail={"bus": True}), Invalid("odd")])
async def test_without_the_memory_the_turn_is_answered_and_the_model_knows(world: World, error: Exception) -> None:
    world.memory.error = error  # type: ignore[assignment]
    assert (await world.ask("hi"))["outcome"] == "answer"
    assert "could not be searched" in world.provider.last[-1]["content"]


async def test_a_provider_that_dies_in_mid_stream_is_asked_again_and_its_text_withdrawn(world: World) -> None:
    gone = Unavailable("gone", detail={"bus": True, "sent": True})
    world.provider.scripts += [fails(gone, "wrong "), says("right")]
    turn_id = await world.submit()
    kinds = [(item["type"], item.get("text")) for item in await world.follow(turn_id)]
    assert kinds == [
        ("started", None),
        ("delta", "wrong "),
        ("reset", None),
        ("delta", "right"),
        ("outcome", "right"),
    ] or kinds == [("started", None), ("reset", None), ("delta", "right"), ("outcome", "right")]
    assert world.provider.requests[0] == world.provider.requests[1]
    assert {"turn_id": turn_id, "text": "", "reset": True} in world.published("llm.delta")


async def test_a_provider_that_stays_away_is_asked_six_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel.turns.model_steps._PAUSE_S", 0.001)
    world.provider.scripts += [fails(Unavailable("gone", detail={"bus": True})) for _ in range(7)]
    outcome = await world.ask()
    assert outcome["outcome"] == "error" and outcome["error"]["code"] == "unavailable"
    assert len(world.provider.requests) == 6
    world.provider.scripts.clear()
    assert (await world.ask())["outcome"] == "answer"


async def test_sources_that_all_fail_end_the_turn_with_what_to_do_and_the_next_one_works(world: World) -> None:
    refusal = Unavailable("no source answered: a: HTTP 500", hint="check the key", detail={"reason": "all"})
    world.provider.scripts.append(fails(refusal))
    outcome = await world.ask("first")
    assert outcome["error"] == {
        "code": "unavailable",
        "message": "no source answered: a: HTTP 500",
        "hint": "check the key",
    }
    assert (outcome["outcome"], outcome["text"], outcome["finish_reason"]) == ("error", "", "error")
    assert len(world.provider.requests) == 1
    assert (await world.ask("second"))["text"] == "ok"
    assert world.provider.last[1]["content"] == "first"
    assert "no source answered" in world.provider.last[2]["content"]
    assert [event["input"] for event in await world.told(2)] == ["first", "second"]


async def test_a_prompt_that_is_too_long_is_halved_at_most_twice(world: World) -> None:
    too_long = Invalid("too long", detail={"context_full": True})
    for number in range(12):
        await world.ask(f"turn {number} " + "word " * 400)
    world.memory.hits = [{"id": str(n), "time": 0, "speaker": "a", "text": f"hit {n}"} for n in range(4)]
    world.provider.requests.clear()
    world.provider.scripts += [fails(too_long), fails(too_long), says("fits")]
    assert (await world.ask("and now?"))["text"] == "fits"
    sizes = [len(str(request["request"]["messages"])) for request in world.provider.requests]
    assert sizes[0] > sizes[1] > sizes[2]
    assert [str(request).count("hit ") for request in world.provider.requests] == [4, 2, 1]
    world.provider.scripts += [fails(too_long), fails(too_long), fails(too_long)]
    world.provider.requests.clear()
    outcome = await world.ask("once more")
    assert outcome["error"]["code"] == "invalid" and len(world.provider.requests) == 3


async def test_what_was_said_before_the_time_was_over_is_kept(world: World) -> None:
    world.provider.scripts.append(fails(TimedOut("180 s"), "half an ", "answer"))
    outcome = await world.ask()
    assert (outcome["outcome"], outcome["text"]) == ("answer", "half an answer")
    assert outcome["partial"] and outcome["finish_reason"] == "timeout"
    world.provider.scripts.append(fails(TimedOut("180 s")))
    assert (await world.ask())["error"]["code"] == "timeout"


async def test_a_stream_that_ends_without_an_end_is_an_error(world: World) -> None:
    async def nothing(request):  # type: ignore[no-untyped-def]
        yield {"type": "start", "source": "fake", "model": "m"}

    world.provider.scripts.append(nothing)
    assert (await world.ask())["error"]["code"] == "unavailable"


async def test_stop_keeps_the_partial_text_and_the_lane_goes_on(world: World) -> None:
    never, started = asyncio.Event(), asyncio.Event()
    world.provider.scripts.append(waits(never, "half of ", "it", started=started))
    turn_id = await world.submit("long story")
    following = asyncio.create_task(world.follow(turn_id))
    queued = await world.submit("next")
    await started.wait()
    where = {"channel": "webui", "conversation": "c1"}
    assert await world.web.call("kernel.stop", where) == {"stopped": True}
    outcome = (await following)[-1]
    assert (outcome["outcome"], outcome["text"], outcome["finish_reason"]) == ("stopped", "half of it", "stopped")
    assert (await world.follow(queued))[-1]["text"] == "ok"
    await until(lambda: not world.slots.running)
    assert await world.web.call("kernel.stop", where) == {"stopped": False}
    assert [event["response"] for event in await world.told(2)] == ["half of it", "ok"]


async def test_stopping_twice_changes_nothing(world: World) -> None:
    never, started = asyncio.Event(), asyncio.Event()
    world.provider.scripts.append(waits(never, "half", started=started))
    turn_id = await world.submit()
    await started.wait()
    where = {"channel": "webui", "conversation": "c1"}
    answers = await asyncio.gather(*(world.web.call("kernel.stop", where) for _ in range(3)))
    assert answers[0] == {"stopped": True}
    assert (await world.follow(turn_id))[-1]["outcome"] == "stopped"
    assert (await world.row(turn_id)).outcome == "stopped"


async def test_a_turn_that_waits_for_a_slot_can_be_stopped(world: World) -> None:
    never = asyncio.Event()
    world.provider.scripts += [waits(never) for _ in range(4)]
    for number in range(4):
        await world.submit(conversation=f"busy{number}")
    await until(lambda: len(world.provider.requests) == 4)
    turn_id = await world.submit(conversation="unlucky")
    following = asyncio.create_task(world.follow(turn_id))
    await until(lambda: world.lanes.waiting == 1)
    assert await world.web.call("kernel.stop", {"channel": "webui", "conversation": "unlucky"}) == {"stopped": True}
    assert (await following)[-1] | {"usage": {}} == {
        "type": "outcome",
        "outcome": "stopped",
        "text": "",
        "error": None,
        "usage": {},
        "model": "",
        "finish_reason": "stopped",
        "partial": False,
    }
    never.set()


async def test_a_failure_that_nobody_foresaw_ends_the_turn_and_not_the_kernel(world: World) -> None:
    async def nonsense(request):  # type: ignore[no-untyped-def]
        yield {"type": "done"}

    world.provider.scripts.append(nonsense)
    outcome = await world.ask()
    assert outcome["error"]["code"] == "internal" and "log" in outcome["error"]["message"]
    assert (await world.ask())["outcome"] == "answer"


async def test_a_partial_answer_is_marked_and_its_calls_are_not_made(world: World) -> None:
    echo = await world.plugin("echo", tools=[{"name": "echo", "description": "x"}])

    async def broken(request):  # type: ignore[no-untyped-def]
        yield {"type": "delta", "text": "I will"}
        yield done("I will", tool_calls=[{"id": "a", "name": "echo", "arguments": "{}"}], partial=True)

    world.provider.scripts.append(broken)
    outcome = await world.ask()
    assert outcome["partial"] and outcome["text"] == "I will" and not echo.calls
