"""The methods on the bus: what they answer, refuse and announce."""

from __future__ import annotations

from typing import Any

import pytest

from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import Invalid, Unavailable
from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service import service as module
from memory_service.service import MemoryService
from memory_service.store.abc import Store
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_append


async def test_what_was_appended_is_recalled(kernel: LocalPeer) -> None:
    assert await kernel.call("memory.append", an_append("t1", "我的自行车停在地下车库", "记住了")) == {"stored": True}
    answer = await kernel.call("memory.recall", {"query": "自行车停在哪里", "audience": ["owner"]})
    assert not answer["no_record"]
    (hit,) = answer["hits"]
    assert isinstance(hit.pop("score"), float)
    assert "自行车" in hit.pop("why")
    assert hit == {
        "id": "t1",
        "kind": "event",
        "tier": "context",
        "time": NOON,
        "speaker": "Ann",
        "channel": "webui",
        "text": "我的自行车停在地下车库",
        "reply": "记住了",
    }


async def test_appending_again_changes_nothing_and_is_announced_once(kernel: LocalPeer, bus: LocalBus) -> None:
    for _ in range(2):
        assert await kernel.call("memory.append", an_append("t1")) == {"stored": True}
    assert (await kernel.call("memory.stats"))["events"] == 1
    assert [(event.topic, event.payload["id"]) for event in bus.events] == [("memory.appended", "t1")]


async def test_an_announcement_says_nothing_of_the_content(kernel: LocalPeer, bus: LocalBus) -> None:
    await kernel.call("memory.append", an_append("t1", "my secret"))
    assert set(bus.events[0].payload) == {"id", "channel", "time"}


async def test_what_asks_not_to_be_remembered_is_not(kernel: LocalPeer, bus: LocalBus) -> None:
    assert await kernel.call("memory.append", an_append("t1", no_memory=True)) == {"stored": False}
    assert (await kernel.call("memory.stats"))["events"] == 0
    assert bus.events == []


async def test_an_event_that_cannot_be_announced_is_stored_all_the_same(
    bus: LocalBus, store: Store, segmenter: Segmenter
) -> None:
    class Mute(LocalPeer):
        async def publish(self, topic: str, payload: Any = None) -> None:
            raise Unavailable("the hub is restarting")

    mute = Mute(bus, "memory", "service")
    context = CallContext("memory.append", None, "t", 0.0)  # type: ignore[arg-type]
    assert await MemoryService(mute, store, segmenter).append(an_append("t1"), context) == {"stored": True}
    assert (await store.upkeep.stats()).events == 1


async def test_nobody_sees_what_is_another_s(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("t1", "the safe opens with 4711"))
    await kernel.call("memory.append", an_append("t2", "the safe is red", visibility={"shared": True}))
    answer = await kernel.call("memory.recall", {"query": "safe", "audience": ["bea"]})
    assert [hit["id"] for hit in answer["hits"]] == ["t2"]
    answer = await kernel.call("memory.recall", {"query": "safe", "audience": ["bea", "owner"]})
    assert [hit["id"] for hit in answer["hits"]] == ["t2"]


async def test_the_operator_searches_everything_or_as_one_person(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("t1", "cake", visibility={"principals": ["ann"]}))
    await kernel.call("memory.append", an_append("t2", "cake", visibility={"principals": ["bea"]}))
    everything = await kernel.call("memory.search", {"query": "cake", "principal": None, "limit": 10})
    one = await kernel.call("memory.search", {"query": "cake", "principal": "bea", "limit": 10})
    assert {hit["id"] for hit in everything["hits"]} == {"t1", "t2"}
    assert [hit["id"] for hit in one["hits"]] == ["t2"]


async def test_limit_budget_and_exclusion_are_honoured(kernel: LocalPeer) -> None:
    for n in range(5):
        await kernel.call("memory.append", an_append(f"t{n}", "cake " + "word " * 40))
    ask = {"query": "cake", "audience": ["owner"]}
    assert len((await kernel.call("memory.recall", {**ask, "limit": 2}))["hits"]) == 2
    assert len((await kernel.call("memory.recall", {**ask, "budget_tokens": 150}))["hits"]) == 2
    rest = await kernel.call("memory.recall", {**ask, "exclude": ["t0", "t1", "t2", "t3"]})
    assert [hit["id"] for hit in rest["hits"]] == ["t4"]


async def test_stats_and_health(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("t1"))
    stats = await kernel.call("memory.stats")
    assert (stats["events"], stats["tiers"], stats["oldest"]) == (1, {"context": 1}, NOON)
    assert (await kernel.call("memory.health"))["state"] == "running"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "event.id"),
        ({"id": None}, "event.id"),
        ({"id": "x" * 2_000}, "event.id"),
        ({"lane": None}, "event.lane"),
        ({"lane": {"channel": "webui"}}, "event.lane.conversation"),
        ({"principal": 7}, "event.principal"),
        ({"visibility": None}, "event.visibility"),
        ({"visibility": {}}, "event.visibility.principals"),
        ({"visibility": {"principals": []}}, "event.visibility.principals"),
        ({"visibility": {"principals": [1]}}, "event.visibility.principals"),
        ({"visibility": {"principals": ["a"], "shared": True}}, "event.visibility.principals"),
        ({"time": "now"}, "event.time"),
        ({"time": True}, "event.time"),
        ({"time": -1}, "event.time"),
        ({"time": float("nan")}, "event.time"),
        ({"input": None}, "event.input"),
        ({"input": ["text"]}, "event.input"),
        ({"tools_used": "echo"}, "event.tools_used"),
        ({"tool_results": ["x"]}, "event.tool_results.0"),
        ({"tool_results": [{"output": "x"}]}, "event.tool_results.0.name"),
        ({"tool_results": [{"name": "x", "output": "y", "no_memory": "yes"}]}, "event.tool_results.0.no_memory"),
        ({"origin": "dream"}, "event.origin"),
        ({"no_memory": "yes"}, "event.no_memory"),
    ],
)
async def test_a_bad_event_is_refused_by_field(kernel: LocalPeer, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        await kernel.call("memory.append", an_append("t1", **changes))
    assert caught.value.field == field
    assert (await kernel.call("memory.stats"))["events"] == 0


@pytest.mark.parametrize("body", [None, [], "x", {}, {"event": 1}])
async def test_what_is_no_request_is_refused(kernel: LocalPeer, body: Any) -> None:
    for method in ("memory.append", "memory.recall", "memory.search"):
        with pytest.raises(Invalid):
            await kernel.call(method, body)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"query": None}, "query"),
        ({"query": "x" * 100_001}, "query"),
        ({"audience": None}, "audience"),
        ({"audience": []}, "audience"),
        ({"audience": "owner"}, "audience"),
        ({"audience": [""]}, "audience"),
        ({"exclude": [1]}, "exclude"),
        ({"exclude": ["x"] * 1_001}, "exclude"),
        ({"limit": 0}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": 10_000}, "limit"),
        ({"budget_tokens": -1}, "budget_tokens"),
    ],
)
async def test_a_bad_question_is_refused_by_field(kernel: LocalPeer, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        await kernel.call("memory.recall", {"query": "cake", "audience": ["owner"], **changes})
    assert caught.value.field == field


async def test_an_event_that_is_far_too_large_is_refused(kernel: LocalPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory_service.requests.MAX_EVENT_CHARACTERS", 1_000)
    with pytest.raises(Invalid, match="at most 1000"):
        await kernel.call("memory.append", an_append("t1", "x" * 1_001))


async def test_text_that_no_database_takes_is_refused(store: Store, bus: LocalBus, segmenter: Segmenter) -> None:
    service = module.MemoryService(bus.peer("memory"), store, segmenter)
    context = CallContext("memory.append", None, "t", 0.0)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="not valid Unicode"):
        await service.append(an_append("t1", "half a \ud83d"), context)


async def test_structured_tool_output_is_kept_as_json(kernel: LocalPeer) -> None:
    result = {"name": "weather", "output": {"city": "上海", "degrees": 31}}
    await kernel.call("memory.append", an_append("t1", tool_results=[result]))
    answer = await kernel.call("memory.recall", {"query": "上海", "audience": ["owner"]})
    assert [hit["id"] for hit in answer["hits"]] == ["t1"]
