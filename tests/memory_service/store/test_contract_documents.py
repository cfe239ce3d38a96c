"""What any store of documents must do: events move whole and once, notes are found by who may see them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from memory_service.model import CONTEXT, DOCUMENT, Document, Event, Note, NoteSearch, Term
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from memory_service.words.stem import stem
from tests.memory_service.samples import NOON, an_event

DAY = 86_400


def words(*texts: str) -> list[Term]:
    return [Term(text, (stem(text),)) for text in texts]


def a_note(id: str, content: str, *, sees: tuple[str, ...] = ("owner",), time: float = NOON, **more: object) -> Note:
    fields = {"principal": "owner", "summary": "a note", **more}
    return Note(id=id, visible_to=sees, shared=not sees, time=time, content=content, **fields)  # type: ignore[arg-type]


def note_ids(search: NoteSearch) -> list[str]:
    return [candidate.note.id for candidate in search.candidates]


async def fill(store: Store, count: int) -> list[Event]:
    events = [an_event(f"t{n}", f"cake number{n}", f"reply {n}", time=NOON + n * DAY) for n in range(count)]
    await store.events.append_many(events)
    return events


async def tiers(store: Store, ids: Sequence[str]) -> list[tuple[str, str | None]]:
    return [(event.tier, event.document) for event in await store.events.get(ids)]


async def test_archived_events_stay_whole_and_keep_their_times(store: Store) -> None:
    events = await fill(store, 4)
    (document,) = await store.documents.archive(["t2", "t0"], "owner")
    assert (document.kind, document.events) == ("archive", ("t0", "t2"))
    assert (document.first_time, document.last_time) == (NOON, NOON + 2 * DAY)
    assert (document.principal, document.visible_to, document.shared, document.reads) == ("owner", ("owner",), False, 0)
    assert document.summary and document.content == ""
    stored = {event.id: event for event in await store.events.get(["t0", "t1", "t2", "t3"])}
    for event in events:
        moved = event.id in document.events
        place = {"tier": DOCUMENT, "document": document.id} if moved else {"tier": CONTEXT, "document": None}
        assert stored[event.id] == Event(**{**{name: getattr(event, name) for name in event.__slots__}, **place})
    assert await store.documents.get([document.id, "absent"]) == (document,)


async def test_each_audience_gets_a_document_of_its_own(store: Store) -> None:
    for id, sees in (("a", ("ann",)), ("b", ("ann", "bea")), ("c", ("bea", "ann")), ("d", ())):
        await store.events.append(an_event(id, sees=sees))
    documents = await store.documents.archive(["a", "b", "c", "d"], "ann")
    made = {(document.visible_to, document.shared): document.events for document in documents}
    assert made == {(("ann",), False): ("a",), (("ann", "bea"), False): ("b", "c"), ((), True): ("d",)}


async def test_an_event_moves_once(store: Store) -> None:
    await fill(store, 3)
    (first,) = await store.documents.archive(["t0", "t1"], "owner")
    (second,) = await store.documents.archive(["t1", "t2"], "owner")
    assert (first.events, second.events) == (("t0", "t1"), ("t2",))
    assert await store.documents.archive(["t0", "t1", "t2", "absent"], "owner") == ()
    assert await store.documents.archive([], "owner") == ()


async def test_many_who_archive_the_same_events_at_once_move_them_once(store: Store) -> None:
    await fill(store, 12)
    ids = [f"t{n}" for n in range(12)]
    dice = random.Random(3)
    made = await asyncio.gather(*(store.documents.archive(dice.sample(ids, 6), "owner") for _ in range(10)))
    moved = [id for documents in made for document in documents for id in document.events]
    assert len(moved) == len(set(moved))
    places = {event.id: event.document for event in await store.events.get(ids) if event.document}
    assert places == {id: document.id for documents in made for document in documents for id in document.events}


async def test_what_is_archived_is_found_and_counted_as_before(store: Store) -> None:
    await fill(store, 4)
    before = await store.events.find(words("cake"), ("owner",), (), 10)
    (document,) = await store.documents.archive(["t1", "t2"], "owner")
    after = await store.events.find(words("cake"), ("owner",), (), 10)
    assert [(c.event.id, c.relevance) for c in after.candidates] == [
        (c.event.id, c.relevance) for c in before.candidates
    ]
    assert {c.event.id: c.event.document for c in after.candidates if c.event.document} == dict.fromkeys(
        ("t1", "t2"), document.id
    )
    assert (await store.upkeep.stats()).tiers == {CONTEXT: 2, DOCUMENT: 2}


async def test_brought_back_events_lie_at_their_own_time_and_the_document_counts_a_read(store: Store) -> None:
    await fill(store, 4)
    (document,) = await store.documents.archive(["t0", "t1", "t2"], "owner")
    assert await store.documents.bring_back(["t1", "t0", "t3", "absent"]) == ("t0", "t1")
    assert await tiers(store, ["t0", "t1", "t2"]) == [(CONTEXT, None), (CONTEXT, None), (DOCUMENT, document.id)]
    (left,) = await store.documents.get([document.id])
    assert (left.events, left.reads, left.first_time, left.last_time) == (("t2",), 1, NOON + 2 * DAY, NOON + 2 * DAY)
    assert left.last_read is not None
    in_context = await store.events.in_context("owner", ("owner",), 10)
    assert [(item.id, item.time) for item in in_context] == [("t3", NOON + 3 * DAY), ("t1", NOON + DAY), ("t0", NOON)]


async def test_a_document_without_events_vanishes(store: Store) -> None:
    await fill(store, 2)
    (document,) = await store.documents.archive(["t0", "t1"], "owner")
    assert await store.documents.bring_back(["t0", "t1"]) == ("t0", "t1")
    assert await store.documents.get([document.id]) == ()
    assert await store.documents.bring_back(["t0", "t1"]) == ()
    assert (await store.upkeep.stats()).tiers == {CONTEXT: 2}


async def test_moving_back_and_forth_at_once_loses_and_doubles_nothing(store: Store) -> None:
    await fill(store, 20)
    ids = [f"t{n}" for n in range(20)]
    dice = random.Random(9)
    work = [
        store.documents.archive(dice.sample(ids, 7), "owner")
        if n % 2
        else store.documents.bring_back(dice.sample(ids, 7))
        for n in range(40)
    ]
    await asyncio.gather(*work)
    events = await store.events.get(ids)
    assert [event.id for event in events] == ids
    archived = {event.document for event in events if event.document}
    documents: tuple[Document, ...] = await store.documents.get(sorted(archived - {None}))
    assert sorted(id for document in documents for id in document.events) == sorted(
        event.id for event in events if event.tier == DOCUMENT
    )
    assert (await store.upkeep.verify(lambda done, of: None)).ok


async def test_reads_are_counted_when_somebody_says_so(store: Store) -> None:
    await fill(store, 1)
    (document,) = await store.documents.archive(["t0"], "owner")
    await store.documents.write_note(a_note("n1", "tea"))
    await store.documents.count_read([document.id, "n1", "absent"])
    await store.documents.count_read([document.id])
    assert [found.reads for found in await store.documents.get([document.id])] == [2]
    assert [found.reads for found in await store.documents.get(["n1"])] == [1]


async def test_a_note_comes_back_word_for_word(store: Store) -> None:
    note = a_note(
        "n1", "奶奶 drinks\ntea", sees=("ann", "bea"), tags=("tea", "奶奶"), source_event="t9", summary="tea 茶"
    )
    assert await store.documents.write_note(note)
    search = await store.documents.find_notes(words("drink"), ("ann",), 5)
    assert [candidate.note for candidate in search.candidates] == [note]
    (document,) = await store.documents.get(["n1"])
    assert (document.kind, document.content, document.summary, document.tags) == (
        "note",
        note.content,
        note.summary,
        note.tags,
    )
    assert (document.first_time, document.last_time, document.events) == (NOON, NOON, ())


async def test_writing_a_note_again_changes_nothing_or_replaces_it(store: Store) -> None:
    assert await store.documents.write_note(a_note("n1", "tea"))
    assert not await store.documents.write_note(a_note("n1", "tea"))
    assert await store.documents.write_note(a_note("n1", "coffee"))
    assert note_ids(await store.documents.find_notes(words("tea"), ("owner",), 5)) == []
    search = await store.documents.find_notes(words("coffee"), ("owner",), 5)
    assert (note_ids(search), search.total, search.frequencies) == (["n1"], 1, (1,))


async def test_a_note_that_is_replaced_at_once_by_many_is_one_of_them(store: Store) -> None:
    await asyncio.gather(*(store.documents.write_note(a_note("n1", f"version{n} common")) for n in range(20)))
    search = await store.documents.find_notes(words("common"), ("owner",), 50)
    assert note_ids(search) == ["n1"]
    (note,) = (candidate.note for candidate in search.candidates)
    assert note_ids(await store.documents.find_notes(words(note.content.split()[0]), ("owner",), 5)) == ["n1"]


async def test_only_what_the_whole_audience_may_see_of_notes_is_found(store: Store) -> None:
    for id, sees in (("ann's", ("ann",)), ("both's", ("ann", "bea")), ("all's", ())):
        await store.documents.write_note(a_note(id, "cake", sees=sees))
    for audience, expected in (
        (("ann",), {"ann's", "both's", "all's"}),
        (("bea",), {"both's", "all's"}),
        (("ann", "bea"), {"both's", "all's"}),
        (("ann", "bea", "carl"), {"all's"}),
        (None, {"ann's", "both's", "all's"}),
    ):
        search = await store.documents.find_notes(words("cake"), audience, 10)
        assert set(note_ids(search)) == expected
        numbers = {item.number for item in await store.vectors.queued(10)}
        by_number = await store.documents.notes_by_number(numbers, audience)
        assert {note.id for note in by_number.values()} == expected


@pytest.mark.parametrize("question", ["奶奶喝什么茶", "茶", "普洱", "tea"])
async def test_notes_are_found_in_both_languages(store: Store, segmenter: Segmenter, question: str) -> None:
    await store.documents.write_note(a_note("n1", "奶奶每天早上喝普洱茶", tags=("tea",)))
    await store.documents.write_note(a_note("n2", "something else"))
    search = await store.documents.find_notes(terms(question, segmenter), ("owner",), 5)
    assert note_ids(search) == ["n1"]
