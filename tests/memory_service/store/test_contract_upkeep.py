"""What any store must tell of itself."""

from __future__ import annotations

import asyncio

from memory_service.model import Note
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event


async def test_an_item_is_described_with_all_that_hangs_on_it(store: Store) -> None:
    await store.events.append(an_event("t1", "tea", "noted"))
    await store.documents.write_note(Note("n1", "owner", ("owner",), False, NOON, "tea", "a note", source_event="t1"))
    (document,) = await store.documents.archive(["t1"], "owner")
    event = await store.upkeep.describe("t1")
    assert event is not None
    assert (event["kind"], event["text"], event["reply"]) == ("event", "tea", "noted")
    assert (event["tier"], event["document"], event["notes"]) == ("document", document.id, ["n1"])
    assert event["indexes"] == {"words": True, "vectors": [], "waits_for_vector": True}
    archive = await store.upkeep.describe(document.id)
    assert archive is not None and archive["events"] == ["t1"] and not archive["is_note"]
    note = await store.upkeep.describe("n1")
    assert note is not None and note["is_note"] and note["content"] == "tea"
    assert await store.upkeep.describe("absent") is None


async def test_a_store_that_was_used_is_whole_and_needs_no_repair(store: Store) -> None:
    await store.events.append_many([an_event(f"t{n}", f"cake number{n}") for n in range(50)])
    await asyncio.gather(*(store.documents.archive([f"t{n}", f"t{n + 1}"], "owner") for n in range(0, 40, 3)))
    await store.documents.bring_back(["t3", "t4"])
    seen: list[tuple[int, int]] = []
    report = await store.upkeep.verify(lambda done, of: seen.append((done, of)))
    assert report.ok and report.checks
    assert seen[-1][0] == seen[-1][1] and seen == sorted(seen)
    assert await store.upkeep.repair() == {}
