"""Vectors follow what is stored, survive restarts, and are found by meaning; without them words go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Unavailable
from memory_service.encoders.abc import Space, Vectors
from memory_service.encoders.client import EncoderWorker
from memory_service.encoders.hashing import HashingEncoder
from memory_service.model import Note
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.store.sqlite import SqliteStore
from memory_service.vectors import keeper as module
from memory_service.vectors.keeper import VectorKeeper
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event


class InProcess:
    """An encoder without a process, that can be made to fail, and to be of another version."""

    def __init__(self, version: str = "") -> None:
        self._encoder = HashingEncoder()
        self._version = version
        self.failing = False
        self.encoded: list[str] = []

    async def encode(self, texts: Sequence[str], *, urgent: bool = False) -> tuple[Space, Vectors]:
        if self.failing:
            raise Unavailable("the encoder is broken")
        if not urgent:
            self.encoded += texts
        space = self._encoder.space
        return Space(space.encoder, space.fingerprint + self._version, space.dimensions), self._encoder.encode(texts)

    def warm(self) -> bool:
        return not self.failing

    def health(self) -> dict[str, Any]:
        return {"state": "running"}


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def keeping(store: Store, encoder: InProcess | EncoderWorker) -> AsyncIterator[VectorKeeper]:
    """Run a keeper until everything has its vector, and on."""
    keeper = VectorKeeper(store.vectors, encoder)
    running = asyncio.create_task(keeper.run())
    try:
        if not getattr(encoder, "failing", False):
            await caught_up(store, keeper)
        yield keeper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def caught_up(store: Store, keeper: VectorKeeper) -> None:
    async def check() -> bool:
        return await store.vectors.waiting() == 0 and bool(keeper.health()["is_idle"])

    await eventually(check)


async def nearest(keeper: VectorKeeper, text: str, audiences: tuple[int, ...] | None = None) -> list[int]:
    meaning = await keeper.of(text)
    assert meaning is not None
    return list((await meaning.nearest(audiences, {"event": 5}))["event"])


async def test_what_is_stored_gets_its_vector(store: Store) -> None:
    await store.events.append(an_event("bike", "我的自行车停在地下车库"))
    async with keeping(store, InProcess()) as keeper:
        await store.events.append(an_event("tea", "奶奶喝普洱茶", "记住了"))
        keeper.notify()
        await caught_up(store, keeper)
        assert keeper.health()["vectors"]["event"] == 3
        assert (await nearest(keeper, "普洱茶"))[0] == 2
        assert (await nearest(keeper, "自行车"))[0] == 1


async def test_an_event_without_text_has_no_vector_and_does_not_wait(store: Store) -> None:
    await store.events.append(an_event("blank", "  "))
    async with keeping(store, InProcess()) as keeper:
        assert keeper.health()["vectors"]["event"] == 0


async def test_a_restart_encodes_nothing_again(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "memory.db")
    for n in range(200):
        await store.events.append(an_event(f"e{n}", f"word{n} 第{n}个事件"))
    async with keeping(store, InProcess()):
        pass
    await store.close()
    store = SqliteStore.open(tmp_path / "memory.db")
    encoder = InProcess()
    async with keeping(store, encoder) as keeper:
        assert encoder.encoded == []
        assert keeper.health()["vectors"]["event"] == 200
        assert (await nearest(keeper, "word77"))[0] == 78
    await store.close()


async def test_another_space_starts_anew_and_the_old_one_is_kept_apart(store: Store) -> None:
    for n in range(20):
        await store.events.append(an_event(f"e{n}", f"word{n} story"))
    async with keeping(store, InProcess()):
        pass
    newer = InProcess("-2")
    await store.events.append(an_event("new", "another story"))
    async with keeping(store, newer) as keeper:
        assert len(newer.encoded) == 21
        assert keeper.health()["vectors"]["event"] == 21
    back = InProcess()
    await store.events.append(an_event("newest", "one more story"))
    async with keeping(store, back) as keeper:
        assert sorted(back.encoded) == ["another story", "one more story"]
        assert keeper.health()["vectors"]["event"] == 22


async def test_a_broken_encoder_delays_vectors_and_loses_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", (0.02, 0.05))
    encoder = InProcess()
    encoder.failing = True
    await store.events.append(an_event("bike", "the bike is in the garage"))
    async with keeping(store, encoder) as keeper:
        assert await keeper.of("bike") is None
        await asyncio.sleep(0.1)
        assert "broken" in str(keeper.health()["reason"])
        encoder.failing = False
        await caught_up(store, keeper)
        assert await nearest(keeper, "bike") == [1]


async def test_a_note_that_is_written_anew_means_what_it_says_now(store: Store) -> None:
    first = Note("n", "owner", ("owner",), False, NOON, "The cake is in the oven.", "cake")
    await store.documents.write_note(first)
    async with keeping(store, InProcess()) as keeper:
        await store.documents.write_note(replace(first, content="The bicycle has a flat tyre.", summary="bicycle"))
        keeper.notify()
        await caught_up(store, keeper)
        assert keeper.health()["vectors"]["document"] == 1
        cake, bicycle = await keeper.of("cake in the oven"), await keeper.of("bicycle with a flat tyre")
        assert cake is not None and bicycle is not None
        assert (await cake.nearest(None, {"note": 5}))["note"][1] < 0.2
        assert (await bicycle.nearest(None, {"note": 5}))["note"][1] > 0.5


async def test_meanings_respect_the_audience(store: Store) -> None:
    for person in ("ann", "bea"):
        await store.events.append(an_event(f"{person}'s", "the secret cake", sees=(person,)))
    await store.events.append(an_event("all's", "the cake of all", sees=()))
    async with keeping(store, InProcess()) as keeper:
        seen = await store.events.audiences(("ann",))
        assert set(await nearest(keeper, "cake", seen)) == {1, 3}
        both = await store.events.audiences(("ann", "bea"))
        assert set(await nearest(keeper, "cake", both)) == {3}


async def test_what_is_forgotten_is_near_to_nothing(store: Store) -> None:
    await store.events.append(an_event("e", "the cake"))
    async with keeping(store, InProcess()) as keeper:
        keeper.forget("event", [1])
        assert await nearest(keeper, "cake") == []


async def test_recall_finds_by_meaning_what_shares_no_word(store: Store, segmenter: Segmenter, tmp_path: Path) -> None:
    for n, said in enumerate(
        ("我的自行车停在地下车库", "奶奶每天早上喝普洱茶", "The dentist appointment is on Friday", "我们明天去看电影")
    ):
        await store.events.append(an_event(f"e{n}", said, time=NOON + n))
    note = Note("n1", "owner", ("owner",), False, NOON, "The wifi code of the summer house is on the fridge.", "wifi")
    await store.documents.write_note(note)
    worker = EncoderWorker(tmp_path / "cache")
    async with keeping(store, worker) as keeper:
        recall = Recall(store, segmenter, keeper)
        for question, id in (
            ("Where did I park my bicycle?", "e0"),
            ("What does grandma drink in the morning?", "e1"),
            ("牙齿检查约在哪天？", "e2"),
            ("Where is the password for the internet?", "n1"),
        ):
            hits = (await recall.recall(question, ("owner",))).hits
            assert hits[0].id == id, (question, [(hit.id, hit.score) for hit in hits])
        assert not (await recall.recall("Where did I park my bicycle?", ("ann",))).hits
    await worker.close()


async def test_the_patient_wait_for_an_encoder_and_the_others_do_not(store: Store, tmp_path: Path) -> None:
    await store.events.append(an_event("bike", "我的自行车停在地下车库"))
    worker = EncoderWorker(tmp_path / "cache")
    keeper = VectorKeeper(store.vectors, worker)
    running = asyncio.create_task(keeper.run())
    assert await keeper.of("bicycle") is None
    assert await keeper.of("bicycle", 30.0) is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await worker.close()


async def test_the_patient_do_not_wait_for_an_empty_memory(store: Store) -> None:
    keeper = VectorKeeper(store.vectors, InProcess())
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(5):
        assert await keeper.of("bicycle", 30.0) is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_note_rewritten_while_its_old_text_is_encoded_gets_the_vector_of_the_new_one(store: Store) -> None:
    def note(content: str) -> Note:
        return Note("n1", "owner", ("owner",), False, NOON, content, "a note")

    await store.documents.write_note(note("the old text"))
    (old,) = await store.vectors.queued(5)
    await store.documents.write_note(note("another text"))
    space = await store.vectors.open_space("f", "tfidf", 4)
    assert await store.vectors.put(space, [(old, {"text": b"\x01\x02\x03\x04"})]) == ()
    (new,) = await store.vectors.queued(5)
    assert "another" in new.parts["text"]
    assert await store.vectors.put(space, [(new, {"text": b"\x01\x02\x03\x04"})]) == (new,)
    assert await store.vectors.waiting() == 0


async def test_a_greeting_brings_nothing_to_mind(store: Store, segmenter: Segmenter, tmp_path: Path) -> None:
    for n, said in enumerate(("hello", "good morning, how are you?", "hey there")):
        await store.events.append(an_event(f"e{n}", said))
    worker = EncoderWorker(tmp_path / "cache")
    async with keeping(store, worker) as keeper:
        recall = Recall(store, segmenter, keeper)
        for greeting in ("hi", "hi!", "你好"):
            assert (await recall.recall(greeting, ("owner",), patience_s=30)).hits == ()
    await worker.close()


async def test_what_was_just_asked_is_not_encoded_again_when_it_is_stored(store: Store) -> None:
    await store.events.append(an_event("e1", "the bike is in the garage"))
    encoder = InProcess()
    async with keeping(store, encoder) as keeper:
        encoder.encoded.clear()
        assert await keeper.of("where is my bike") is not None
        await store.events.append(an_event("e2", "where is my bike", "in the garage"))
        keeper.notify()
        await caught_up(store, keeper)
        assert encoder.encoded == ["in the garage"]
        assert (await nearest(keeper, "where is my bike"))[0] == 2
        await store.events.append(an_event("e3", "where is my bike"))
        keeper.forget("event", [2])
        keeper.notify()
        await caught_up(store, keeper)
        assert encoder.encoded == ["in the garage", "where is my bike"]


async def test_the_questions_that_are_kept_are_bounded_and_of_one_space(store: Store) -> None:
    await store.events.append(an_event("e1", "the bike is in the garage"))
    encoder = InProcess()
    async with keeping(store, encoder) as keeper:
        for number in range(200):
            await keeper.of(f"question {number}")
        assert len(keeper._asked) == module._MOST_ASKED
        encoder._version = "-2"
        encoder.encoded.clear()
        await store.events.append(an_event("e2", "question 199", "no idea"))
        keeper.notify()
        await caught_up(store, keeper)
        assert "question 199" in encoder.encoded and keeper.health()["vectors"]["event"] == 3
