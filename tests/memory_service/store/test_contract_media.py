"""What any store of media must do: the same bytes once, one holder a block, nothing half."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound, Unavailable
from memory_service.graph.model import Fact, Holder, MediaCheck, Telling
from memory_service.model import Selection
from memory_service.store import media
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event

OWNER = ("owner",)
CAT = b"\x89PNG a cat"
CLEAN = MediaCheck((), (), ())
T1, T2 = Holder("event", "t1"), Holder("event", "t2")


@pytest.fixture(autouse=True)
async def events(store: Store) -> None:
    for id in ("t1", "t2"):
        await store.events.append(an_event(id))
    await store.events.append(an_event("anns", sees=("ann",)))


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "media").rglob("*") if path.is_file()]


async def test_bytes_come_back_as_they_were(store: Store, tmp_path: Path) -> None:
    block = await store.media.put(CAT, "image/png", T1, "a cat")
    assert (block.mime, block.bytes, block.caption) == ("image/png", len(CAT), "a cat")
    assert await store.media.read(block.id, OWNER) == (block, CAT)
    (file,) = files(tmp_path)
    assert (file.name, file.parent.name) == (block.digest, block.digest[:2])
    assert file.stat().st_mode & 0o077 == 0
    assert await store.media.verify() == CLEAN


async def test_the_same_bytes_lie_once_and_belong_to_each_holder(store: Store, tmp_path: Path) -> None:
    first, again, other = [await store.media.put(CAT, "image/png", holder) for holder in (T1, T1, T2)]
    assert first == again
    assert (first.id == other.id, first.digest == other.digest) == (False, True)
    assert await store.media.held_by(T1, OWNER) == (first,)
    assert len(files(tmp_path)) == 1
    assert await store.media.drop([first.id]) == 1
    assert (await store.media.read(other.id, OWNER))[1] == CAT
    assert await store.media.drop([other.id, "absent"]) == 1
    assert files(tmp_path) == []


async def test_a_block_moves_and_has_one_holder(store: Store) -> None:
    block = await store.media.put(CAT, "image/png", T1)
    (document,) = await store.documents.archive(["t1"], "owner")
    holder = Holder("document", document.id)
    assert await store.media.move([block.id], holder) == 1
    assert await store.media.move([block.id], holder) == 0
    assert await store.media.held_by(holder, OWNER) == (block,)
    assert await store.media.held_by(T1, OWNER) == ()


async def test_an_entity_holds_media_of_its_audience(store: Store) -> None:
    await store.graph.commit([Fact("Tom", "is", "cat")], Telling("owner", OWNER, False, NOON, "model"))
    entity = Holder("entity", "TOM", OWNER)
    block = await store.media.put(CAT, "image/png", entity)
    assert await store.media.held_by(entity, OWNER) == (block,)
    with pytest.raises(NotFound):
        await store.media.put(CAT, "image/png", Holder("entity", "Tom", ("ann",)))
    await store.graph.commit([Fact("Thomas", "likes", "fish")], Telling("owner", OWNER, False, NOON, "model"))
    await store.graph.merge("Tom", "Thomas", OWNER)
    assert await store.media.held_by(Holder("entity", "Thomas", OWNER), OWNER) == (block,)


async def test_nobody_sees_or_gets_the_media_of_others(store: Store) -> None:
    block = await store.media.put(CAT, "image/png", Holder("event", "anns"))
    with pytest.raises(NotFound):
        await store.media.read(block.id, OWNER)
    assert await store.media.held_by(Holder("event", "anns"), OWNER) == ()
    with pytest.raises(Conflict):
        await store.media.move([block.id], T1)
    assert (await store.media.read(block.id, ("ann",)))[0] == block


async def test_what_cannot_be_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BYTES", 8)
    for content, holder, error in (
        (b"", T1, Invalid),
        (b"123456789", T1, Invalid),
        (b"1", Holder("scene", "x"), Invalid),
        (b"1", Holder("event", "absent"), NotFound),
    ):
        with pytest.raises(error):
            await store.media.put(content, "image/png", holder)
    block = await store.media.put(b"12345678", "image/png", T1)
    with pytest.raises(NotFound):
        await store.media.move([block.id], Holder("event", "absent"))


async def test_a_crash_between_file_and_row_leaves_a_file_that_is_found(store: Store, tmp_path: Path) -> None:
    kept = await store.media.put(CAT, "image/png", T1)
    with pytest.raises(NotFound):
        await store.media.put(b"orphan", "image/png", Holder("event", "absent"))
    half = tmp_path / "media" / kept.digest[:2] / f".{kept.digest}.1.new"
    half.write_bytes(b"\x89P")
    check = await store.media.verify()
    assert (check.missing, check.damaged, len(check.orphans)) == ((), (), 2)
    assert await store.media.clean_up() == 2
    assert await store.media.verify() == CLEAN
    assert (await store.media.read(kept.id, OWNER))[1] == CAT


async def test_damaged_and_missing_bytes_are_told_and_never_given_out(store: Store, tmp_path: Path) -> None:
    cat = await store.media.put(CAT, "image/png", T1)
    dog = await store.media.put(b"a dog", "image/png", T1)
    for block, change in ((cat, b"\x89PNG a bat"), (dog, None)):
        path = tmp_path / "media" / block.digest[:2] / block.digest
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change)
    for block in (cat, dog):
        with pytest.raises(Unavailable, match=block.digest):
            await store.media.read(block.id, OWNER)
    assert await store.media.verify() == MediaCheck((dog.digest,), (cat.digest,), ())


async def test_a_full_disk_leaves_nothing_half(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            await store.media.put(CAT, "image/png", T1)
    assert files(tmp_path) == []
    assert await store.media.held_by(T1, OWNER) == ()
    assert (await store.media.put(CAT, "image/png", T1)).bytes == len(CAT)


async def test_bytes_are_deleted_only_when_nothing_holds_them(store: Store, tmp_path: Path) -> None:
    first = await store.media.put(CAT, "image/png", T1)
    await store.media.put(CAT, "image/png", T2)
    assert await store.media.discard([first.digest, "absent"]) == 0
    await store.forgetting.delete(Selection(ids=("t1", "t2")))
    assert await store.media.discard(await store.forgetting.media()) == 1
    assert files(tmp_path) == []


async def test_storing_and_dropping_the_same_bytes_at_once_never_loses_them(store: Store) -> None:
    for _ in range(10):
        old = await store.media.put(CAT, "image/png", T1)
        _, new = await asyncio.gather(store.media.drop([old.id]), store.media.put(CAT, "image/png", T2))
        assert (await store.media.read(new.id, OWNER))[1] == CAT
        await store.media.drop([new.id])
