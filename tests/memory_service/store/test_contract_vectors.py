"""What any store of vectors must do: what is stored waits for its vector, in whatever space is in use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from memory_service.model import Note, Selection, ToEmbed
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event


def a_note(id: str, content: str) -> Note:
    return Note(id, "owner", ("owner",), False, NOON, content, "a note")


def coded(items: Sequence[ToEmbed], code: bytes = b"abc") -> list[tuple[ToEmbed, Mapping[str, bytes]]]:
    return [(item, dict.fromkeys(item.parts, code)) for item in items]


async def encode_all(store: Store, fingerprint: str = "f1", code: bytes = b"abc") -> int:
    space = await store.vectors.open_space(fingerprint, "test", 3)
    while items := await store.vectors.queued(100):
        await store.vectors.put(space, coded(items, code))
    return space


async def loaded(store: Store, space: int) -> list[tuple[str, int, str, bytes]]:
    rows = await store.vectors.load(space, 0, 1_000)
    return [(kind, item, part, code) for _, kind, item, _, part, code in rows]


async def test_what_is_stored_waits_for_its_vector_part_by_part(store: Store) -> None:
    await store.events.append(an_event("e1", " tea ", "noted"))
    await store.events.append(an_event("e2", "coffee", ""))
    await store.documents.write_note(a_note("n1", "cake"))
    assert await store.vectors.waiting() == 3
    items = {(item.kind, item.number): item for item in await store.vectors.queued(10)}
    events = {event.id: number for number, event in (await store.events.by_number([1, 2, 3], None)).items()}
    assert items["event", events["e1"]].parts == {"said": "tea", "reply": "noted"}
    assert items["event", events["e2"]].parts == {"said": "coffee"}
    ((_, note),) = ((key, item) for key, item in items.items() if key[0] == "document")
    assert note.parts == {"text": "a note\ncake"}
    assert {item.audience for item in items.values()} == set(await store.events.audiences(("owner",))) - {0}


async def test_the_newest_are_taken_first_and_no_more_than_asked_for(store: Store) -> None:
    await store.events.append_many([an_event(f"e{n}", f"text{n}") for n in range(5)])
    assert {item.parts["said"] for item in await store.vectors.queued(2)} == {"text4", "text3"}


async def test_an_encoded_item_waits_no_more_and_is_loaded_in_order(store: Store) -> None:
    await store.events.append_many([an_event(f"e{n}", f"text{n}", "reply") for n in range(3)])
    space = await store.vectors.open_space("f1", "test", 3)
    items = await store.vectors.queued(10)
    assert await store.vectors.put(space, coded(items)) == tuple(items)
    assert await store.vectors.waiting() == 0
    rows = await store.vectors.load(space, 0, 4)
    rest = await store.vectors.load(space, rows[-1][0], 100)
    numbers = [row[0] for row in (*rows, *rest)]
    assert numbers == sorted(set(numbers)) and len(numbers) == 6
    assert {(row[2], row[4]) for row in (*rows, *rest)} == {
        (item.number, part) for item in items for part in ("said", "reply")
    }
    assert {row[3] for row in (*rows, *rest)} == {item.audience for item in items}


async def test_putting_again_changes_nothing(store: Store) -> None:
    await store.events.append(an_event("e1", "text"))
    space = await store.vectors.open_space("f1", "test", 3)
    items = await store.vectors.queued(10)
    await store.vectors.put(space, coded(items))
    assert await store.vectors.put(space, coded(items, b"xyz")) == ()
    assert [code for *_, code in await loaded(store, space)] == [b"abc"]


async def test_what_was_forgotten_meanwhile_gets_no_vector(store: Store) -> None:
    await store.events.append_many([an_event("e1", "text"), an_event("e2", "text")])
    space = await store.vectors.open_space("f1", "test", 3)
    items = await store.vectors.queued(10)
    await store.forgetting.delete(Selection(ids=("e1",)))
    stored = await store.vectors.put(space, coded(items))
    left = {event.id for event in (await store.events.by_number([item.number for item in stored], None)).values()}
    assert left == {"e2"}
    assert len(await loaded(store, space)) == 1


async def test_a_note_written_anew_waits_again(store: Store) -> None:
    await store.documents.write_note(a_note("n1", "tea"))
    space = await encode_all(store)
    await store.documents.write_note(a_note("n1", "tea"))
    assert await store.vectors.waiting() == 0
    await store.documents.write_note(a_note("n1", "coffee"))
    (item,) = await store.vectors.queued(10)
    assert item.parts == {"text": "a note\ncoffee"}
    assert await loaded(store, space) == []


async def test_spaces_are_known_by_their_fingerprint_and_never_mixed(store: Store) -> None:
    await store.events.append(an_event("e1", "text"))
    assert await store.vectors.last_space() is None
    first = await encode_all(store, "f1", b"one")
    assert await store.vectors.open_space("f1", "test", 3) == first
    assert await store.vectors.waiting() == 0
    second = await encode_all(store, "f2", b"two")
    assert second != first
    assert [code for *_, code in await loaded(store, first)] == [b"one"]
    assert [code for *_, code in await loaded(store, second)] == [b"two"]
    assert await store.vectors.last_space() == ("test", "f2", 3)
    await store.vectors.open_space("f1", "test", 3)
    assert await store.vectors.last_space() == ("test", "f1", 3)


async def test_a_space_used_again_gets_what_was_stored_meanwhile(store: Store) -> None:
    await store.events.append(an_event("e1", "text"))
    await encode_all(store, "f1")
    await store.vectors.open_space("f2", "test", 3)
    await store.events.append(an_event("e2", "other"))
    assert await store.vectors.waiting() == 2
    await store.vectors.open_space("f1", "test", 3)
    assert [item.parts["said"] for item in await store.vectors.queued(10)] == ["other"]


async def test_moving_an_event_keeps_its_vector(store: Store) -> None:
    await store.events.append(an_event("e1", "text"))
    space = await encode_all(store)
    before = await loaded(store, space)
    await store.documents.archive(["e1"], "owner")
    await store.documents.bring_back(["e1"])
    assert await loaded(store, space) == before
    assert await store.vectors.waiting() == 0


async def test_encoding_and_storing_at_once_lose_nothing(store: Store) -> None:
    space = await store.vectors.open_space("f1", "test", 3)

    async def write() -> None:
        for n in range(60):
            await store.events.append(an_event(f"e{n}", f"text{n}"))

    writing = asyncio.ensure_future(write())
    while not writing.done() or await store.vectors.waiting():
        await store.vectors.put(space, coded(await store.vectors.queued(7)))
    await writing
    assert len({item for _, item, *_ in await loaded(store, space)}) == 60
    assert (await store.upkeep.verify(lambda done, of: None)).ok
