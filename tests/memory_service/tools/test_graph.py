"""The memory's tools around facts, as a model calls them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.model import Selection, estimated_tokens
from memory_service.store.abc import Store
from memory_service.tools.writing import BUDGET_TOKENS
from tests.memory_service.samples import NOON, an_append, an_event

READING = {"memory_recall", "memory_introspect"}
WRITING = {"memory_commit", "memory_edit", "memory_merge", "memory_delete_entity", "memory_purge"}


async def call(
    kernel: LocalPeer, tool: str, turn: str = "turn-1", who: tuple[str, ...] = ("owner",), **arguments: Any
) -> Any:
    context = {
        "turn_id": turn,
        "call_id": f"{turn}-c1",
        "channel": "webui",
        "conversation": "c1",
        "principal": who[0],
        "speaker": "Ann",
        "audience": list(who),
    }
    return await kernel.call("memory.tool", {"tool": tool, "arguments": arguments, "context": context})


async def run(kernel: LocalPeer, tool: str, **arguments: Any) -> str:
    answer = await call(kernel, tool, **arguments)
    assert not answer["is_error"], answer
    return str(answer["content"])


async def refused(kernel: LocalPeer, tool: str, **arguments: Any) -> Any:
    answer = await call(kernel, tool, **arguments)
    assert answer["is_error"] and answer["content"] is None
    return answer["error"]


def triple(subject: str, relation: str, object: str, **more: str) -> dict[str, str]:
    return {"subject": subject, "relation": relation, "object": object, **more}


async def remember(kernel: LocalPeer, *triples: dict[str, str], **more: Any) -> str:
    return await run(kernel, "memory_commit", triples=list(triples), **more)


async def registered(bus: LocalBus) -> dict[str, Any]:
    told: list[Any] = []

    async def register(body: Any, call: Any) -> dict[str, Any]:
        told.append(body)
        return {}

    bus.peer("kernel", "kernel").serve("kernel.register", register)
    await bus.peers["memory"].start()
    return {tool["name"]: tool for tool in told[0]["tools"]}


async def test_the_tools_are_told_with_their_flags_and_are_short(bus: LocalBus, kernel: LocalPeer) -> None:
    tools = await registered(bus)
    assert tools.keys() >= READING | WRITING
    flags = {name: tools[name]["flags"] for name in READING | WRITING}
    assert all(each["no_memory"] for each in flags.values())
    assert {name for name in flags if flags[name]["always"]} == {"memory_recall"}
    assert {name for name in flags if flags[name]["parallel_safe"]} == READING
    assert {name for name in flags if flags[name]["idempotent"]} == READING | {"memory_commit", "memory_edit"}
    schemas = [{key: tools[name][key] for key in ("name", "description", "parameters")} for name in READING | WRITING]
    assert sum(estimated_tokens(str(schema)) for schema in schemas) < 900


async def test_what_was_committed_is_recalled_with_its_sentence_and_day(kernel: LocalPeer) -> None:
    stored = await remember(
        kernel, triple("Ann", "lives in", "Rome", sentence_text="Ann moved to Rome."), triple("Ann", "likes", "tea")
    )
    assert stored == "2 stored"
    answer = await run(kernel, "memory_recall", query_intent="Ann")
    assert answer.startswith("Facts:\n- Ann likes tea (20")
    assert "Ann lives in Rome (" in answer and "“Ann moved to Rome.”" in answer


async def test_committing_again_changes_nothing_and_says_so(kernel: LocalPeer) -> None:
    await remember(kernel, triple("Ann", "likes", "tea"))
    assert await remember(kernel, triple("ann", "LIKES", "tea"), turn="turn-2") == "0 stored, 1 known already"


async def test_failure_22_what_was_refused_is_named_with_its_field(kernel: LocalPeer) -> None:
    told = await remember(kernel, triple("gateway", "listens on", "13010"), triple("gateway", "is", "…"))
    assert told == "1 stored, 1 refused: triples.1.object has neither a letter nor a digit"
    error = await refused(kernel, "memory_commit", triples=[triple("", "is", "tea"), triple("a", "is", "tea")])
    assert (error["field"], error["reason"]) == ("triples.0.subject", "invalid")
    assert "triples.1.subject is a single letter" in error["detail"]


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        ("memory_commit", {"triples": []}, "triples"),
        ("memory_commit", {"triples": "Ann likes tea"}, "triples"),
        ("memory_commit", {"triples": [triple("Ann", "likes", "tea")] * 65}, "triples"),
        ("memory_commit", {"triples": [{"subject": "Ann", "relation": "likes"}]}, "arguments.triples.0.object"),
        ("memory_commit", {"triples": ["Ann likes tea"]}, "triples.0"),
        ("memory_commit", {"triples": [triple("Ann", "likes", "tea", scene="x" * 97)]}, "triples.0.scene"),
        ("memory_recall", {"query_intent": "  "}, "query_intent"),
        ("memory_recall", {"query_intent": "x" * 2_001}, "query_intent"),
        ("memory_recall", {"query_intent": "Ann", "depth": 9}, "depth"),
        ("memory_recall", {"query_intent": "Ann", "depth": "2"}, "depth"),
        ("memory_recall", {"query_intent": "Ann", "sort": "newest"}, "sort"),
        ("memory_merge", {"source": "Ann"}, "target"),
        ("memory_merge", {"source": "Ann", "target": " "}, "target"),
        ("memory_edit", {"old_subject": "a", "old_relation": "b", "old_object": "c"}, "new_object"),
        ("memory_delete_entity", {"name": "Ann", "mode": "gone"}, "mode"),
        ("memory_purge", {}, "subject"),
        ("memory_purge", {"subject_contains": " "}, "subject_contains"),
        ("memory_introspect", {"verbose": True}, "verbose"),
    ],
)
async def test_a_wrong_argument_is_an_error_that_names_it(
    kernel: LocalPeer, tool: str, arguments: dict[str, Any], field: str
) -> None:
    error = await refused(kernel, tool, **arguments)
    assert (error["field"].removeprefix("arguments."), error["reason"]) == (field.removeprefix("arguments."), "invalid")


async def test_recall_finds_conversations_and_notes_beside_facts_and_shows_nothing_twice(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("e1", "I parked the blue bicycle in the cellar", "Noted."))
    await run(kernel, "doc_commit", content="The bicycle lock has the code 4711.")
    await remember(kernel, triple("bicycle", "stands in", "cellar"))
    answer = await run(kernel, "memory_recall", query_intent="bicycle")
    assert answer.count("bicycle stands in cellar") == 1
    assert "Ann by webui: I parked the blue bicycle in the cellar" in answer
    assert "→ you: Noted." in answer
    assert "Note of 20" in answer and "4711" in answer


async def test_what_is_not_known_is_said(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("e1", "I parked the blue bicycle in the cellar"))
    await remember(kernel, triple("Ann", "likes", "tea"))
    answer = await run(kernel, "memory_recall", query_intent="Zanzibar dentist")
    assert answer.startswith("Nothing on record about 'Zanzibar dentist'.")
    assert "Facts:" not in answer and "Said and noted:" not in answer
    about_ann = await run(kernel, "memory_recall", query_intent="Ann, Zanzibar dentist surgery")
    assert "Ann likes tea" in about_ann
    assert "Beyond that, nothing on record about" in about_ann


async def test_an_answer_keeps_to_its_budget(kernel: LocalPeer) -> None:
    for number in range(12):
        await kernel.call("memory.append", an_append(f"e{number}", f"cake {number} " + "with much cream " * 80))
        sentence = "the cake needs butter and sugar " * 12
        await remember(kernel, triple("cake", "needs", f"thing {number}", sentence_text=sentence))
    answer = await run(kernel, "memory_recall", query_intent="cake")
    assert estimated_tokens(answer) < BUDGET_TOKENS * 1.1
    assert "more facts: ask more narrowly" in answer
    assert "did not fit" in answer


async def test_failure_33_recent_means_the_newest_first(kernel: LocalPeer, store: Store) -> None:
    for number in (2, 1, 3):
        await store.events.append(an_event(f"e{number}", f"cake {number}", time=NOON + number * 60))
    await remember(kernel, triple("cake", "has", "cream"))
    answer = await run(kernel, "memory_recall", query_intent="cake", sort="recent")
    places = [answer.index(f"cake {number}") for number in (3, 2, 1)]
    assert places == sorted(places)


async def test_failure_27_depth_is_how_far_one_goes(kernel: LocalPeer) -> None:
    await remember(
        kernel, triple("Ann", "knows", "Bea"), triple("Bea", "knows", "Carl"), triple("Carl", "knows", "Dan")
    )
    assert "Carl" not in await run(kernel, "memory_recall", query_intent="Ann", depth=1)
    assert "Dan" not in await run(kernel, "memory_recall", query_intent="Ann")
    assert "Dan" in await run(kernel, "memory_recall", query_intent="Ann", depth=3)


async def test_an_edit_is_told_and_leaves_history(kernel: LocalPeer) -> None:
    await remember(kernel, triple("Ann", "lives in", "Paris"))
    edit = {"old_subject": "Ann", "old_relation": "lives in", "old_object": "Paris", "new_object": "Rome"}
    assert await run(kernel, "memory_edit", **edit) == "Ann lives in Paris → Ann lives in Rome"
    assert await run(kernel, "memory_edit", **edit) == "so already: Ann lives in Paris → Ann lives in Rome"
    answer = await run(kernel, "memory_recall", query_intent="where does Ann live")
    assert "Ann lives in Rome" in answer and "until 20" in answer and "Ann lives in Paris)" in answer
    error = await refused(kernel, "memory_edit", **{**edit, "old_object": "Oslo"})
    assert (error["reason"], error["field"]) == ("not_found", "old_object")


async def test_failure_37_a_merge_is_told_and_the_second_one_is_an_error(kernel: LocalPeer) -> None:
    await remember(kernel, triple("Bob", "likes", "tea"), triple("Robert", "likes", "tea"), triple("Bob", "is", "tall"))
    told = await run(kernel, "memory_merge", source="Bob", target="Robert")
    assert told == "Bob is Robert now: 2 facts moved, 1 dropped since they said nothing new"
    error = await refused(kernel, "memory_merge", source="Bob", target="Robert")
    assert (error["reason"], error["field"]) == ("not_found", "source")


async def test_failure_23_deleting_says_what_it_deleted(kernel: LocalPeer) -> None:
    await remember(kernel, triple("Ann", "likes", "tea"), triple("Bea", "knows", "Ann"))
    assert await run(kernel, "memory_delete_entity", name="ann") == "2 facts deleted: Ann likes tea; Bea knows Ann"
    assert "Nothing on record" in await run(kernel, "memory_recall", query_intent="Ann")
    assert await run(kernel, "memory_introspect") == "0 facts about 0 names; 0 older ones were replaced."
    assert (await refused(kernel, "memory_delete_entity", name="nobody"))["reason"] == "not_found"


async def test_failure_38_a_purge_deletes_what_it_says_and_nothing_else(kernel: LocalPeer) -> None:
    await remember(kernel, triple("offer", "is", "50%"), triple("offer", "was", "50 cents"))
    assert await run(kernel, "memory_purge", target_contains="50%") == "1 fact deleted: offer is 50%"
    assert await run(kernel, "memory_purge", target_contains="%") == "no fact fits; nothing was deleted"
    assert await run(kernel, "memory_purge", subject="offer", mode="hard") == (
        "2 facts deleted for good: offer is 50%; offer was 50 cents"
    )


async def test_introspection_counts_and_names_the_busiest(kernel: LocalPeer) -> None:
    await remember(kernel, triple("Ann", "likes", "tea"), triple("Ann", "likes", "cake"))
    told = await run(kernel, "memory_introspect")
    assert told == "2 facts about 3 names; 0 older ones were replaced.\n\nFacts by name: Ann 2, cake 1, tea 1"


async def test_a_fact_belongs_to_its_turn_and_goes_with_it(kernel: LocalPeer, store: Store) -> None:
    await remember(kernel, triple("Ann", "likes", "tea"), turn="t1")
    await kernel.call("memory.append", an_append("t1", "I like tea"))
    described = await store.upkeep.describe("t1")
    assert described is not None and len(described["relations"]) == 1
    await store.forgetting.delete(Selection(ids=("t1",)))
    assert "Nothing on record" in await run(kernel, "memory_recall", query_intent="Ann")
    error = await refused(kernel, "memory_commit", triples=[triple("Ann", "likes", "tea")], turn="t1")
    assert error["field"] == "triples.0.source"


async def test_facts_about_what_is_asked_stand_beside_documents(kernel: LocalPeer) -> None:
    await kernel.call("memory.append", an_append("e1", "Ann bakes a cake on Sunday"))
    await remember(kernel, triple("Ann", "likes", "tea"))
    assert "Ann likes tea" in await run(kernel, "doc_query", query="Ann cake")
    assert "Ann likes tea" not in await run(kernel, "doc_query", query="Ann cake", who=("bea",))


async def test_a_thousand_questions_of_ten_people_tell_nothing_of_another(kernel: LocalPeer) -> None:
    dice = random.Random(5)
    people = [f"person{n}" for n in range(10)]
    for person in people:
        triples = [triple(f"name{dice.randrange(30)}", "hides", f"{person}secret{n}") for n in range(12)]
        await remember(kernel, *triples, who=(person,))
    tools: list[tuple[str, Any]] = [
        ("memory_recall", lambda name, other: {"query_intent": f"{name}, {other}secret", "depth": 3}),
        ("memory_introspect", lambda name, other: {}),
        ("memory_purge", lambda name, other: {"subject": name, "target_contains": f"{other}secret", "mode": "hard"}),
        ("memory_delete_entity", lambda name, other: {"name": f"{other}secret3"}),
        ("memory_merge", lambda name, other: {"source": f"{other}secret4", "target": name}),
    ]
    for number in range(1_000):
        asking, other = dice.sample(people, 2)
        tool, arguments = tools[number % len(tools)]
        asked = arguments(f"name{dice.randrange(30)}", other)
        answer = await call(kernel, tool, who=(asking,), **asked)
        told = str(answer).replace(str(asked.get("query_intent")), "").replace(f"{other}secret3", "")
        told = told.replace(f"{other}secret4", "").replace("\\\\", "")
        assert not [person for person in people if person != asking and f"{person}secret" in told], answer
    for person in people:
        counted = await run(kernel, "memory_introspect", who=(person,))
        assert counted.startswith("12 facts")
