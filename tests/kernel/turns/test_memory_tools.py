"""Tools that the memory service registers: few in full, the others fetched; gone with it and back with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homeagent_sdk.errors import Denied, Invalid
from kernel.bus import access
from tests.kernel.world import TOOL, FakePlugin, Item, World, calls, died, says, tool

TOOLS = [
    tool("memory_recall", no_memory=True, parallel_safe=True, idempotent=True, always=True),
    tool("memory_commit"),
    tool("doc_query", no_memory=True, parallel_safe=True, idempotent=True, timeout_s=5),
]


class FakeMemoryTools(FakePlugin):
    """The memory service as far as it has tools; it registers as it does at each welcome."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "memory", "service")
        self.peer.serve("memory.append", world.memory._append)
        self.peer.serve("memory.recall", world.memory._recall)

    async def welcome(self, tools: list[Item] = TOOLS) -> None:
        body = {"generation": 1, "tools": tools, "stages": [], "outputs": [], "inputs": []}
        await self.peer.call("kernel.register", body)


@pytest.fixture
async def memory(world: World) -> FakeMemoryTools:
    made = FakeMemoryTools(world)
    await made.welcome()
    return made


def results(world: World) -> list[str]:
    return [message["content"] for message in world.provider.last if message["role"] == "tool"]


def offered(world: World) -> list[str]:
    return [each["name"] for each in world.provider.requests[-1]["request"]["tools"]]


async def run_calls(world: World, *wanted: Any) -> Item:
    world.provider.scripts += [calls(*wanted), says("done")]
    return await world.ask()


def test_the_memory_and_no_other_service_may_register_and_only_the_kernel_may_call_its_tools() -> None:
    assert access.is_allowed("memory", "service", "kernel.register")
    for name, tier in (("provider", "service"), ("host", "service"), ("operator-1", "operator"), ("kernel", "kernel")):
        assert not access.is_allowed(name, tier, "kernel.register")
    assert access.is_allowed("kernel", "kernel", "memory.tool")
    for tier in ("service", "operator", "builtin", "external"):
        assert not access.is_allowed("somebody", tier, "memory.tool")


async def test_a_call_tells_the_memory_who_will_read_the_answer(world: World, memory: FakeMemoryTools) -> None:
    world.provider.scripts += [calls(("memory_recall", {"text": "cat"}, "a1")), says("done")]
    turn_id = await world.submit("what about the cat?", principal="anna", speaker="Anna")
    await world.follow(turn_id)
    assert results(world) == ["cat"]
    assert memory.calls == [
        {
            "tool": "memory_recall",
            "arguments": {"text": "cat"},
            "context": {
                "turn_id": turn_id,
                "channel": "webui",
                "conversation": "c1",
                "principal": "anna",
                "speaker": "Anna",
                "call_id": f"{turn_id}-a1",
                "audience": ["anna"],
            },
        }
    ]


async def test_the_flagged_are_shown_in_full_and_the_others_are_a_line_until_fetched(
    world: World, memory: FakeMemoryTools
) -> None:
    world.provider.scripts += [
        calls(("get_plugin_tools", {"plugin_name": "memory"})),
        calls(("memory_commit", {"text": "noted"})),
        says("done"),
    ]
    await world.ask()
    first, second, _ = world.provider.requests
    assert [each["name"] for each in first["request"]["tools"]] == ["get_plugin_tools", "memory_recall"]
    assert "\nmemory (2 tools): memory_commit: does something; doc_query:" in first["request"]["messages"][0]["content"]
    assert [each["name"] for each in second["request"]["tools"]] == [
        "get_plugin_tools",
        "memory_recall",
        "memory_commit",
        "doc_query",
    ]
    fetched = json.loads(results(world)[0])
    assert [each["name"] for each in fetched] == ["memory_commit", "doc_query"], "what it has already is not repeated"
    assert results(world)[1] == "noted"
    assert first["request"]["messages"][0] == second["request"]["messages"][0]


async def test_results_flagged_no_memory_are_told_as_not_to_be_found_again(
    world: World, memory: FakeMemoryTools
) -> None:
    await run_calls(world, ("memory_recall", {"text": "recalled"}), ("memory_commit", {"text": "committed"}))
    (event,) = await world.told()
    assert {each["name"]: each["no_memory"] for each in event["tool_results"]} == {
        "memory_recall": True,
        "memory_commit": False,
    }


async def test_when_the_memory_is_gone_its_tools_say_so_and_when_it_is_back_they_work(
    world: World, memory: FakeMemoryTools
) -> None:
    memory.die()
    await run_calls(
        world,
        ("memory_recall", {"text": "x"}, "a"),
        ("memory_commit", {"text": "x"}, "b"),
        ("get_plugin_tools", {"plugin_name": "memory"}, "c"),
    )
    for told in map(json.loads, results(world)):
        assert told["reason"] == "unavailable" and "restarting" in told["detail"]
    assert "memory_recall" not in offered(world)
    back = FakeMemoryTools(world)
    await back.welcome()
    await run_calls(world, ("memory_recall", {"text": "back"}))
    assert results(world)[-1] == "back"
    assert world.plugins.absent_tools == {}


async def test_a_memory_that_dies_during_a_call_is_told_truthfully(world: World, memory: FakeMemoryTools) -> None:
    async def die(body: Item) -> Item:
        raise died(sent=True)

    memory.on_tool = die
    await run_calls(world, ("memory_recall", {"text": "x"}, "a"), ("memory_commit", {"text": "x"}, "b"))
    recall, commit = results(world)
    assert "The memory service is unavailable, restarting." in recall and "may or may not" not in recall
    assert "The memory service is unavailable, restarting." in commit and "may or may not have run" in commit


@pytest.mark.parametrize(
    ("part", "content"),
    [("stages", [{"stage": "on_input"}]), ("outputs", [{"name": "x"}]), ("inputs", [{"name": "x"}])],
)
async def test_it_may_register_tools_alone(world: World, memory: FakeMemoryTools, part: str, content: Any) -> None:
    with pytest.raises(Denied, match=part):
        await memory.peer.call("kernel.register", {"generation": 1, "tools": [], part: content})
    assert len(world.tools.of_plugin("memory")) == 3


async def test_a_plugin_cannot_have_its_tools_shown_always(world: World) -> None:
    with pytest.raises(Invalid, match="only services"):
        await world.plugin("pushy", tools=[tool("look_at_me", always=True)])
    await world.plugin("modest", tools=[tool("fine", always=False)])


async def test_many_tools_of_the_memory_leave_room_for_those_of_plugins(world: World, memory: FakeMemoryTools) -> None:
    wide = {**TOOL, "description": "long " * 60}
    await memory.welcome([{"name": f"memory_{n}", **wide, "flags": {"always": True}} for n in range(40)])
    await world.plugin("echo", tools=[tool("echo")])
    offer = world.tools.offer()
    names = [each["name"] for each in offer.schemas]
    assert names[0] == "get_plugin_tools" and names[-1] == "echo"
    assert 1 <= names.index("echo") - 1 <= 5, "as many as half of the budget has room for"
    assert offer.tokens < 900
    assert all(len(line) < 450 for line in offer.catalogue)


async def test_fetching_schemas_costs_no_write_to_the_journal_and_disturbs_no_other_call(
    world: World, memory: FakeMemoryTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    save = world.journal.save

    async def counted(turn_id: str, step: str, *rest: Any, **more: Any) -> None:
        saved.append(step)
        await save(turn_id, step, *rest, **more)

    monkeypatch.setattr(world.journal, "save", counted)
    await run_calls(world, ("get_plugin_tools", {"plugin_name": "memory"}, "a"), ("memory_recall", {"text": "x"}, "b"))
    assert saved == ["post_action", "llm"], "once after the model's answer, once after the batch"
    (event,) = await world.told()
    assert [each["no_memory"] for each in event["tool_results"]] == [True, True]
