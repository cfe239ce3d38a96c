"""``memory.window`` over a real store: what a conversation is shown, what moves, and who never sees what."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from homeagent_sdk.errors import Invalid, Unavailable
from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.context.likeness import Likeness
from memory_service.context.requests import parse_window
from memory_service.context.window import MOST_MOVED, ContextWindow
from memory_service.store.abc import Store
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event

FILLER = "word " * 78
"""About 100 tokens as an event."""


def asks(query: str = "bicycle", **more: Any) -> dict[str, Any]:
    return {
        "lane": {"channel": "webui", "conversation": "c1"},
        "principal": "owner",
        "audience": ["owner"],
        "query": query,
        "keep": [],
        "keep_tokens": 0,
        "protected": 3,
        "budget_tokens": 3_000,
        "max_events": 1_000,
        **more,
    }


async def fill(store: Store, count: int, **more: Any) -> None:
    events = [an_event(f"e{number}", f"{FILLER}{number}", time=NOON + number, **more) for number in range(count)]
    await store.events.append_many(events)


async def tiers(store: Store) -> Mapping[str, int]:
    return (await store.upkeep.stats()).tiers


async def test_what_is_like_the_input_stays_however_old_it_is(kernel: LocalPeer, store: Store) -> None:
    await store.events.append(an_event("fact", "my bicycle stands in the cellar", "noted", time=NOON - 1))
    await fill(store, 60)
    answer = await kernel.call("memory.window", asks("where is the bicycle?"))
    assert answer["events"][0] == {
        "id": "fact",
        "time": NOON - 1,
        "channel": "webui",
        "conversation": "c1",
        "speaker": "Ann",
        "text": "my bicycle stands in the cellar",
        "reply": "noted",
    }
    times = [event["time"] for event in answer["events"]]
    assert times == sorted(times)
    assert [event["id"] for event in answer["events"]][-3:] == ["e57", "e58", "e59"]
    assert answer["archived"] == 61 - len(answer["events"])
    assert await tiers(store) == {"context": len(answer["events"]), "document": answer["archived"]}


async def test_failure_13_archived_events_are_whole_each_with_its_own_time(kernel: LocalPeer, store: Store) -> None:
    long = an_event("long", "beginning " + "long " * 2_000 + "end", "reply " * 900, time=NOON - 9)
    await store.events.append(long)
    await fill(store, 60)
    answer = await kernel.call("memory.window", asks())
    (found,) = await store.events.get(["long"])
    (document,) = await store.documents.get([found.document or ""])
    assert (found.tier, found.input, found.response, found.time) == ("document", long.input, long.response, NOON - 9)
    assert document.first_time == NOON - 9
    assert answer["document"] == document.id


async def test_repeating_a_call_whose_answer_was_lost_moves_nothing_more(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 80)
    await fill(store, 80, conversation="elsewhere")
    first = await kernel.call("memory.window", asks("word 17"))
    again = await kernel.call("memory.window", asks("word 17"))
    assert first["archived"] > 0
    assert (again["archived"], again["document"]) == (0, None)
    assert again["events"] == first["events"]


async def test_a_context_that_fits_loses_nothing(kernel: LocalPeer, store: Store, bus: LocalBus) -> None:
    await fill(store, 25)
    answer = await kernel.call("memory.window", asks())
    assert answer["archived"] == 0
    assert bus.events == []


async def test_failure_7_what_moved_is_announced_by_its_number(kernel: LocalPeer, store: Store, bus: LocalBus) -> None:
    await fill(store, 60)
    answer = await kernel.call("memory.window", asks())
    (event,) = bus.events
    assert event.topic == "memory.migrated"
    assert event.payload == {
        "count": answer["archived"],
        "from": "context",
        "to": "document",
        "documents": answer["documents"],
    }


async def test_failure_10_an_empty_input_uses_the_last_real_one_of_the_lane(kernel: LocalPeer, store: Store) -> None:
    await store.events.append(an_event("fact", "my bicycle stands in the cellar", time=NOON - 1))
    await fill(store, 60)
    await store.events.append(an_event("asked", "tell me of the bicycle", time=NOON + 100))
    await store.events.append(an_event("tick", "word 3", origin="self", time=NOON + 101))
    await store.events.append(an_event("picture", "", "nice", time=NOON + 102))
    answer = await kernel.call("memory.window", asks("  "))
    assert answer["archived"] > 0
    assert "fact" in [event["id"] for event in answer["events"]]


async def test_failure_10_without_any_input_nothing_is_archived(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 60, conversation="elsewhere")
    answer = await kernel.call("memory.window", asks(""))
    assert answer["archived"] == 0
    assert [event["id"] for event in answer["events"]][-1] == "e59"
    assert await tiers(store) == {"context": 60}


async def test_failure_11_without_an_encoder_words_decide(store: Store, segmenter: Segmenter) -> None:
    await store.events.append(an_event("fact", "我的自行车停在地下车库", time=NOON - 1))
    await fill(store, 60)
    window = ContextWindow(store, Likeness(store, segmenter, None))
    made = await window.make(parse_window(asks("自行车在哪里")))
    assert made.events[0].id == "fact"


class FakeMeaning:
    """Cosines as a test sets them."""

    enough = 0.5

    def __init__(self, cosines: Mapping[int, float]) -> None:
        self._cosines = cosines

    async def of(self, text: str) -> FakeMeaning:
        return self

    async def nearest(self, audiences: Any, counts: Any) -> Any:
        raise AssertionError("a window looks for nothing")

    async def cosines(self, numbers: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, float]]:
        return {kind: {n: self._cosines[n] for n in some if n in self._cosines} for kind, some in numbers.items()}


async def test_where_every_event_has_a_vector_meaning_decides(store: Store, segmenter: Segmenter) -> None:
    await fill(store, 60)
    meanings = FakeMeaning({number: 0.9 if number in (2, 5) else 0.1 for number in range(1, 61)})
    made = await ContextWindow(store, Likeness(store, segmenter, meanings)).make(parse_window(asks("word 40")))
    assert [event.id for event in made.events][:2] == ["e1", "e4"]


async def test_failure_8_cosines_and_word_scores_are_never_sorted_together(store: Store, segmenter: Segmenter) -> None:
    await fill(store, 60)
    meanings = FakeMeaning({number: 0.99 for number in range(1, 59) if number != 20})
    made = await ContextWindow(store, Likeness(store, segmenter, meanings)).make(parse_window(asks("word 3")))
    assert made.events[0].id == "e3", "one event has no vector, so words decide for all"


async def test_an_event_without_words_needs_no_vector(store: Store, segmenter: Segmenter) -> None:
    await store.events.append(an_event("empty", " ", time=NOON - 5))
    await fill(store, 60)
    await store.vectors.open_space("s", "none", 1)
    while waiting := await store.vectors.queued(100):
        await store.vectors.put(1, [(item, {}) for item in waiting])
    meanings = FakeMeaning({number: 0.9 if number == 4 else 0.1 for number in range(2, 62)})
    made = await ContextWindow(store, Likeness(store, segmenter, meanings)).make(parse_window(asks("word 40")))
    assert "e2" in [event.id for event in made.events]


async def test_nobody_sees_in_a_window_or_a_count_what_is_not_theirs(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 60)
    mine = [an_event(f"b{n}", f"{FILLER} bicycle {n}", sees=("bob",), principal="bob", time=NOON + n) for n in range(9)]
    await store.events.append_many(mine)
    await store.events.append_many(
        [an_event(f"g{n}", f"bicycle {n}", sees=("owner", "bob"), time=NOON + n) for n in range(5)]
    )
    answer = await kernel.call("memory.window", asks(audience=["owner", "carol"]))
    assert (answer["events"], answer["archived"]) == ([], 0)
    answer = await kernel.call("memory.window", asks(audience=["owner", "bob"]))
    assert {event["id"] for event in answer["events"]} == {f"g{n}" for n in range(5)}
    assert answer["archived"] == 0
    answer = await kernel.call("memory.window", asks(principal="bob", audience=["bob"]))
    assert {event["id"] for event in answer["events"]} == {f"b{n}" for n in range(9)}


async def test_a_document_holds_only_events_of_one_audience(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 40)
    await store.events.append_many(
        [an_event(f"s{n}", f"{FILLER} {n}", sees=("owner", "bob"), time=NOON - n) for n in range(10)]
    )
    answer = await kernel.call("memory.window", asks("nothing of that"))
    documents = await store.documents.get(answer["documents"])
    assert {document.visible_to for document in documents} == {("owner",), ("bob", "owner")}
    for document in documents:
        assert {event.visible_to for event in await store.events.get(document.events)} <= {document.visible_to}


async def test_one_call_moves_a_bounded_number_and_the_next_ones_the_rest(kernel: LocalPeer, store: Store) -> None:
    await fill(store, MOST_MOVED + 100)
    moved = [(await kernel.call("memory.window", asks("x")))["archived"] for _ in range(3)]
    assert moved[0] == MOST_MOVED
    assert 0 < moved[1] < 100
    assert moved[2] == 0


async def test_a_prune_that_breaks_off_has_lost_nothing_and_goes_on(
    kernel: LocalPeer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(store, 300)
    archive, calls = store.documents.archive, 0

    async def breaks_off(events: Collection[str], principal: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Unavailable("the disk is full")
        return await archive(events, principal)

    monkeypatch.setattr(store.documents, "archive", breaks_off)
    with pytest.raises(Unavailable):
        await kernel.call("memory.window", asks("x"))
    assert await tiers(store) == {"context": 300 - 128, "document": 128}
    answer = await kernel.call("memory.window", asks("x"))
    assert (await tiers(store))["document"] == 128 + answer["archived"]
    assert sum((await tiers(store)).values()) == 300


async def test_two_lanes_may_prune_the_same_context_at_once(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 200)
    await fill(store, 200, conversation="c2")
    lanes = [asks("word 3"), asks("word 7", lane={"channel": "webui", "conversation": "c2"})]
    answers = await asyncio.gather(*(kernel.call("memory.window", lane) for lane in lanes))
    counted = await tiers(store)
    assert counted["document"] == sum(answer["archived"] for answer in answers)
    documents = await store.documents.get([id for answer in answers for id in answer["documents"]])
    events = [id for document in documents for id in document.events]
    assert len(events) == len(set(events)) == counted["document"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"audience": []}, "audience"),
        ({"lane": {"channel": "webui"}}, "lane.conversation"),
        ({"principal": ""}, "principal"),
        ({"budget_tokens": -1}, "budget_tokens"),
        ({"budget_tokens": "many"}, "budget_tokens"),
        ({"max_events": 0}, "max_events"),
        ({"protected": True}, "protected"),
        ({"keep": [5]}, "keep"),
        ({"query": 5}, "query"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_field(kernel: LocalPeer, change: Any, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        await kernel.call("memory.window", asks(**change))
    assert caught.value.field == field


async def test_a_budget_of_nothing_shows_nothing_and_keeps_what_is_protected(kernel: LocalPeer, store: Store) -> None:
    await fill(store, 10)
    answer = await kernel.call("memory.window", asks(budget_tokens=0))
    assert answer["events"] == []
    assert (await tiers(store))["context"] == 1
