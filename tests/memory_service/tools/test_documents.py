"""doc_query, coldcontext_query and doc_commit over a real store and a bus in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from homeagent_sdk.errors import Unavailable
from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.model import Event
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.tools import ToolRegistry
from memory_service.tools.documents import document_tools
from memory_service.tools.notes import MAX_NOTE_CHARACTERS
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event
from tests.memory_service.tools.test_registry import CONTEXT

DAY = 86_400.0


async def use(kernel: LocalPeer, tool: str, /, *, audience: Sequence[str] = ("owner",), **arguments: Any) -> str:
    """Call a tool that must succeed."""
    answer = await ask(kernel, tool, audience=audience, **arguments)
    assert answer["is_error"] is False, answer
    return str(answer["content"])


async def ask(kernel: LocalPeer, tool: str, /, *, audience: Sequence[str] = ("owner",), **arguments: Any) -> Any:
    context = {**CONTEXT, "principal": audience[0], "audience": list(audience)}
    return await kernel.call("memory.tool", {"tool": tool, "arguments": arguments, "context": context})


async def archive(store: Store, *events: Event, principal: str = "owner") -> str:
    """Store events and move them into one document."""
    await store.events.append_many(events)
    (document,) = await store.documents.archive([event.id for event in events], principal)
    return document.id


async def tier(store: Store, id: str) -> str:
    (event,) = await store.events.get([id])
    return event.tier


async def some_archives(store: Store) -> None:
    await archive(
        store,
        an_event("bike", "my bicycle stands in the cellar", "noted", time=NOON),
        an_event("milk", "buy milk tomorrow", time=NOON + 60),
    )
    await archive(store, an_event("boat", "the boat is called Undine", time=NOON + 9 * DAY))


# -- doc_query --------------------------------------------------------------------------------------------------------


async def test_doc_query_shows_matching_events_whole_with_their_times_and_brings_them_back(
    kernel: LocalPeer, store: Store, bus: LocalBus
) -> None:
    await some_archives(store)
    told = await use(kernel, "doc_query", query="bicycle")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(NOON))
    assert f"[{when}] Ann by webui: my bicycle stands in the cellar\n→ you: noted" in told
    assert "1 other event of it not shown" in told
    assert told.endswith("[back in the context at their own times: 1 event]")
    assert "Undine" not in told
    (bike,) = await store.events.get(["bike"])
    assert (bike.tier, bike.time, bike.document) == ("context", NOON, None)
    assert await tier(store, "milk") == "document"
    assert bus.events[-1].payload == {"count": 1, "from": "document", "to": "context", "documents": []}


async def test_an_archive_that_was_brought_back_whole_is_gone_and_another_counts_the_read(
    kernel: LocalPeer, store: Store
) -> None:
    first = await archive(store, an_event("a", "the red bicycle"), an_event("b", "milk"))
    second = await archive(store, an_event("c", "the blue bicycle"))
    await use(kernel, "doc_query", query="bicycle")
    (left,) = await store.documents.get([first, second])
    assert (left.id, left.events, left.reads) == (first, ("b",), 1)


async def test_asking_again_finds_the_same_events_in_the_context(kernel: LocalPeer, store: Store) -> None:
    """So that a call that is repeated after a crash does not say that there is nothing."""
    await some_archives(store)
    await use(kernel, "doc_query", query="bicycle")
    again = await use(kernel, "doc_query", query="bicycle")
    assert "In the context already:" in again
    assert "my bicycle stands in the cellar" in again
    assert "back in the context" not in again


async def test_failure_9_what_was_not_found_may_have_happened_all_the_same(kernel: LocalPeer, store: Store) -> None:
    await some_archives(store)
    for tool in ("doc_query", "coldcontext_query"):
        told = await use(kernel, tool, query="submarine")
        assert "'submarine'" in told
        assert "does not mean that it never happened" in told
    assert await tier(store, "bike") == "document"


async def test_failure_12_a_return_that_fails_has_moved_nothing(
    kernel: LocalPeer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_archives(store)

    async def full(events: Collection[str]) -> Any:
        raise Unavailable("the disk is full", hint="make room")

    monkeypatch.setattr(store.documents, "bring_back", full)
    answer = await ask(kernel, "doc_query", query="bicycle")
    assert answer["error"] == {
        "field": None,
        "reason": "unavailable",
        "detail": "the disk is full",
        "hint": "make room",
    }
    assert await tier(store, "bike") == "document"


async def test_failure_13_a_long_event_comes_back_whole(kernel: LocalPeer, store: Store) -> None:
    long = "start of the bicycle story " + "and so on " * 2_000 + "its end"
    await archive(store, an_event("long", long))
    told = await use(kernel, "doc_query", query="bicycle story")
    assert long in told


async def test_what_does_not_fit_is_counted_and_stays_archived(kernel: LocalPeer, store: Store) -> None:
    events = [an_event(f"e{n}", f"bicycle {n} " + "word " * 2_000, time=NOON + n) for n in range(4)]
    await archive(store, *events)
    told = await use(kernel, "doc_query", query="bicycle word")
    assert "did not fit; ask more narrowly" in told
    moved = [event.id for event in events if await tier(store, event.id) == "context"]
    assert 0 < len(moved) < 4
    assert f"{4 - len(moved)} other event" in told


async def test_doc_query_finds_notes_and_counts_a_deliberate_read(kernel: LocalPeer, store: Store) -> None:
    await use(kernel, "doc_commit", content="the gateway listens on port 13010", tags=["ops"])
    await some_archives(store)
    told = await use(kernel, "doc_query", query="13010")
    assert "(ops): the gateway listens on port 13010" in told
    assert "back in the context" not in told
    hits = (await kernel.call("memory.recall", {"query": "13010", "audience": ["owner"]}))["hits"]
    assert [hit["kind"] for hit in hits] == ["note"]
    (note,) = await store.documents.get([hits[0]["id"]])
    assert note.reads == 1, "failure 18: what recall shows by itself does not count"


async def test_top_k_bounds_the_documents(kernel: LocalPeer, store: Store) -> None:
    for number in range(5):
        await archive(store, an_event(f"e{number}", f"bicycle {number}", time=NOON + number))
    assert (await use(kernel, "doc_query", query="bicycle", top_k=2)).count("Archive of") == 2


async def test_facts_about_what_the_query_names_stand_first(bus: LocalBus, store: Store, segmenter: Segmenter) -> None:
    asked: list[Any] = []

    async def snapshots(query: str, audience: Collection[str]) -> list[str]:
        asked.append((query, tuple(audience)))
        return ["bicycle - stands in - cellar (since 2026-11-01)"]

    async def returned(ids: Sequence[str]) -> None:
        await asyncio.sleep(0)

    registry = ToolRegistry(bus.peer("memory"))
    registry.add(document_tools(store, Recall(store, segmenter), returned, lambda: None, snapshots))
    registry.serve()
    await archive(store, an_event("e", "the bicycle is red"))
    told = await use(bus.peer("kernel", "kernel"), "doc_query", query="bicycle", audience=("owner", "bob"))
    assert told.startswith("Known facts:\nbicycle - stands in - cellar")
    assert asked == [("bicycle", ("owner", "bob"))]


# -- who sees what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["doc_query", "coldcontext_query"])
async def test_nobody_finds_counts_or_moves_what_is_not_theirs(kernel: LocalPeer, store: Store, tool: str) -> None:
    mine = an_event("mine", "my secret bicycle", sees=("bob",), principal="bob")
    await archive(
        store, mine, an_event("other", "bob's other bicycle", sees=("bob",), principal="bob"), principal="bob"
    )
    await use(kernel, "doc_commit", content="bob's bicycle note", audience=("bob",))
    for audience in (("owner",), ("bob", "owner")):
        told = await use(kernel, tool, query="bicycle secret", audience=audience)
        assert told.startswith("No")
        assert "bob" not in told
    assert await tier(store, "mine") == "document"
    assert "my secret bicycle" in await use(kernel, tool, query="bicycle secret", audience=("bob",))


async def test_what_is_shared_is_shown_and_stays_where_its_owner_has_it(kernel: LocalPeer, store: Store) -> None:
    await archive(store, an_event("wifi", "the wifi key is on the fridge", sees=(), principal="bob"), principal="bob")
    told = await use(kernel, "doc_query", query="wifi key")
    assert "on the fridge" in told
    assert "back in the context" not in told
    assert await tier(store, "wifi") == "document"
    assert (await use(kernel, "coldcontext_query", query="wifi key")).startswith("No archived message")


async def test_a_note_is_seen_by_those_who_read_the_answer_all_of_them(kernel: LocalPeer, store: Store) -> None:
    await use(kernel, "doc_commit", content="the party is on Friday", audience=("owner", "bob"))
    for audience in (("owner",), ("bob",), ("bob", "owner")):
        assert "on Friday" in await use(kernel, "doc_query", query="party", audience=audience)
    for audience in (("carol",), ("owner", "carol")):
        assert "Friday" not in await use(kernel, "doc_query", query="party", audience=audience)


# -- coldcontext_query ------------------------------------------------------------------------------------------------


async def test_coldcontext_query_lists_ids_and_times_and_brings_back(kernel: LocalPeer, store: Store) -> None:
    await some_archives(store)
    told = await use(kernel, "coldcontext_query", query="bicycle")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(NOON))
    assert told.startswith(f"bike [{when}] Ann by webui: my bicycle stands in the cellar")
    assert told.endswith(f"[back in the context at their own times: bike of {when}]")
    assert await tier(store, "bike") == "context"
    again = await use(kernel, "coldcontext_query", query="bicycle")
    assert again.startswith("bike [")
    assert "back in the context" not in again


async def test_coldcontext_query_keeps_to_days_and_channel(kernel: LocalPeer, store: Store) -> None:
    events = [
        an_event(f"e{n}", f"bicycle ride {n}", time=NOON + n * DAY, channel="telegram" if n % 2 else "webui")
        for n in range(6)
    ]
    await archive(store, *events)
    day = [time.strftime("%Y-%m-%d", time.localtime(event.time)) for event in events]
    told = await use(kernel, "coldcontext_query", query="bicycle", since=day[2], until=day[4])
    assert [n for n in range(6) if f"ride {n}" in told] == [2, 3, 4]
    told = await use(kernel, "coldcontext_query", query="bicycle", since=day[2], until=day[4], channel="telegram")
    assert [n for n in range(6) if f"ride {n}" in told] == [3]
    told = await use(kernel, "coldcontext_query", query="bicycle", until=f"{day[0]}T00:00:00")
    assert "within these limits" in told


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("doc_query", {"query": " "}, "query"),
        ("doc_query", {"query": "x" * 2_001}, "query"),
        ("doc_query", {"query": "x", "top_k": 0}, "top_k"),
        ("doc_query", {"query": "x", "top_k": 11}, "top_k"),
        ("doc_query", {"query": "x", "limit": 5}, "limit"),
        ("coldcontext_query", {"query": "x", "top_k": 21}, "top_k"),
        ("coldcontext_query", {"query": "x", "since": "yesterday"}, "since"),
        ("coldcontext_query", {"query": "x", "until": 5}, "until"),
        ("coldcontext_query", {"query": "x", "since": "2026-02-02", "until": "2026-02-01"}, "until"),
        ("coldcontext_query", {"query": "x", "until": "9999-12-31"}, "until"),
        ("coldcontext_query", {"query": "x", "channel": ""}, "channel"),
        ("doc_commit", {"content": "  "}, "content"),
        ("doc_commit", {"content": "x" * (MAX_NOTE_CHARACTERS + 1)}, "content"),
        ("doc_commit", {"content": "x", "summary": "x" * 501}, "summary"),
        ("doc_commit", {"content": "x", "tags": "ops"}, "tags"),
        ("doc_commit", {"content": "x", "tags": ["t" * 51]}, "tags"),
        ("doc_commit", {"content": "x", "tags": [f"t{n}" for n in range(21)]}, "tags"),
    ],
)
async def test_a_wrong_argument_is_refused_with_its_name(
    kernel: LocalPeer, tool: str, arguments: dict[str, Any], field: str
) -> None:
    answer = await ask(kernel, tool, **arguments)
    assert answer["is_error"] is True
    assert (answer["error"]["field"], answer["error"]["reason"]) == (field, "invalid")


# -- doc_commit -------------------------------------------------------------------------------------------------------


async def test_a_note_is_stored_once_a_turn(kernel: LocalPeer, store: Store) -> None:
    first = await use(kernel, "doc_commit", content="the party is on Friday")
    again = await use(kernel, "doc_commit", content="the party is on Friday")
    assert first.startswith("stored note-")
    assert again == f"already there: {first.removeprefix('stored ')}"
    (note,) = await store.documents.get([first.removeprefix("stored ")])
    assert (note.kind, note.content, note.summary) == ("note", "the party is on Friday", "the party is on Friday")
    assert (note.visible_to, note.shared, note.principal) == (("owner",), False, "owner")


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        ("字" * 150, "字" * 100),
        ("a" * 99 + "e\u0301" + "tail", "a" * 99),
        ("a" * 98 + "👩\u200d🔬" + "tail", "a" * 98),
        ("a" * 99 + "👍🏽" + "tail", "a" * 99),
        ("short", "short"),
    ],
)
async def test_the_summary_is_the_first_hundred_characters_none_of_them_torn(
    kernel: LocalPeer, store: Store, content: str, summary: str
) -> None:
    id = (await use(kernel, "doc_commit", content=content)).removeprefix("stored ")
    (note,) = await store.documents.get([id])
    assert note.summary == summary


async def test_a_note_of_many_marks_has_a_summary_all_the_same(kernel: LocalPeer, store: Store) -> None:
    id = (await use(kernel, "doc_commit", content="e" + "\u0301" * 300)).removeprefix("stored ")
    (note,) = await store.documents.get([id])
    assert note.summary


async def test_the_tools_are_short_and_their_output_is_not_remembered(bus: LocalBus, kernel: LocalPeer) -> None:
    told: list[Any] = []

    async def register(body: Any, call: Any) -> dict[str, Any]:
        told.append(body)
        return {}

    kernel.serve("kernel.register", register)
    await bus.peers["memory"].start()
    tools = {tool["name"]: tool for tool in told[0]["tools"]}
    assert {"doc_query", "doc_commit", "coldcontext_query"} <= tools.keys()
    for tool in tools.values():
        assert len(tool["description"]) < 150
        assert tool["flags"]["no_memory"]
    assert tools["doc_query"]["flags"]["always"]
