"""What any store of events must do."""

from __future__ import annotations

import asyncio
import random

import pytest

from memory_service.model import Search, Term, ToolResult
from memory_service.store.abc import Store
from memory_service.words.stem import stem
from tests.memory_service.samples import NOON, an_event


def words(*texts: str) -> list[Term]:
    return [Term(text, (stem(text),)) for text in texts]


def ids(search: Search) -> list[str]:
    return [candidate.event.id for candidate in search.candidates]


async def found(store: Store, *texts: str, audience: tuple[str, ...] | None = ("owner",)) -> list[str]:
    return ids(await store.events.find(words(*texts), audience, (), 100))


async def test_an_event_comes_back_word_for_word(store: Store) -> None:
    event = an_event(
        "e1",
        "I parked the car\nat level 3 — 停车场",
        "Noted.",
        sees=("bea", "owner"),
        tools_used=("map",),
        tool_results=(ToolResult("map", '{"level": 3}'), ToolResult("secret", "x", no_memory=True)),
        origin="self",
        time=NOON + 0.25,
    )
    assert await store.events.append(event)
    search = await store.events.find(words("park"), ("owner",), (), 10)
    assert [candidate.event for candidate in search.candidates] == [event]


async def test_the_same_id_is_stored_once(store: Store) -> None:
    assert await store.events.append(an_event("e1", "parked at level 3"))
    assert not await store.events.append(an_event("e1", "something else"))
    assert await found(store, "level") == ["e1"]
    assert await found(store, "someth") == []
    assert (await store.upkeep.stats()).events == 1


async def test_many_appends_at_once_are_all_stored(store: Store) -> None:
    new = await asyncio.gather(*(store.events.append(an_event(f"e{n}", f"word{n} common")) for n in range(300)))
    assert all(new)
    assert len(await found(store, "common")) == 100
    assert (await store.upkeep.stats()).events == 300


async def test_more_of_the_words_is_better(store: Store) -> None:
    await store.events.append(an_event("one", "the cat slept"))
    await store.events.append(an_event("two", "the cat slept on the red sofa"))
    assert await found(store, "cat", "sofa") == ["two", "one"]


async def test_what_matched_and_how_often_words_occur_is_told(store: Store) -> None:
    await store.events.append(an_event("one", "cat"))
    await store.events.append(an_event("two", "cat sofa"))
    search = await store.events.find(words("cat", "sofa", "dog"), ("owner",), (), 10)
    assert search.frequencies == (2, 1, 0)
    assert search.total == 2
    assert {c.event.id: c.matched for c in search.candidates} == {"one": {0}, "two": {0, 1}}


async def test_tokens_in_a_row_must_stand_in_a_row(store: Store) -> None:
    await store.events.append(an_event("temple", "昨天去了静安寺"))
    await store.events.append(an_event("other", "安寺静安"))
    search = await store.events.find([Term("静安寺", ("静安", "安寺"))], ("owner",), (), 10)
    assert ids(search) == ["temple"]


async def test_words_are_found_in_the_reply_the_tools_the_speaker_and_the_day(store: Store) -> None:
    results = (ToolResult("weather", "thunder tonight"), ToolResult("vault", "hunter2", no_memory=True))
    await store.events.append(an_event("e1", "hello", "it was Tuesday", tool_results=results, speaker="Caroline"))
    for word in ("tuesday", "thunder", "caroline"):
        assert await found(store, word) == ["e1"]
    assert await found(store, "05-02") or await found(store, "05-01")


async def test_what_a_tool_wants_forgotten_is_never_found(store: Store) -> None:
    await store.events.append(an_event("e1", "hello", tool_results=(ToolResult("vault", "hunter2", no_memory=True),)))
    assert await found(store, "hunter2", "hunt", "vault") == []


async def test_only_what_the_whole_audience_may_see_is_found(store: Store) -> None:
    await store.events.append(an_event("ann's", "cake", sees=("ann",)))
    await store.events.append(an_event("both's", "cake", sees=("ann", "bea")))
    await store.events.append(an_event("all's", "cake", sees=()))
    assert set(await found(store, "cake", audience=("ann",))) == {"ann's", "both's", "all's"}
    assert set(await found(store, "cake", audience=("bea",))) == {"both's", "all's"}
    assert set(await found(store, "cake", audience=("ann", "bea", "ann"))) == {"both's", "all's"}
    assert set(await found(store, "cake", audience=("ann", "bea", "carl"))) == {"all's"}
    assert set(await found(store, "cake", audience=("nobody",))) == {"all's"}
    assert set(await found(store, "cake", audience=None)) == {"ann's", "both's", "all's"}


async def test_a_thousand_questions_of_ten_people_return_nothing_of_another(store: Store) -> None:
    dice = random.Random(7)
    people = [f"p{n}" for n in range(10)]
    vocabulary = [f"word{n}" for n in range(60)]
    owners: dict[str, set[str]] = {}
    for n in range(400):
        owners[f"e{n}"] = set(dice.sample(people, dice.choice([1, 1, 1, 2, 3])))
    texts = {id: " ".join(dice.choices(vocabulary, k=6)) for id in owners}
    await asyncio.gather(*(store.events.append(an_event(id, texts[id], sees=tuple(owners[id]))) for id in owners))
    for _ in range(1_000):
        audience = dice.sample(people, dice.choice([1, 2]))
        word = dice.choice(vocabulary)
        tokens = [Term(word, ("word", word[4:]))]
        expected = {id for id in owners if owners[id].issuperset(audience) and word in texts[id].split()}
        assert set(ids(await store.events.find(tokens, audience, (), 400))) == expected


async def test_excluded_events_are_left_out(store: Store) -> None:
    for n in range(3):
        await store.events.append(an_event(f"e{n}", "cake"))
    assert set(ids(await store.events.find(words("cake"), ("owner",), ("e1", "absent"), 10))) == {"e0", "e2"}


async def test_no_more_than_the_limit_comes_back(store: Store) -> None:
    for n in range(5):
        await store.events.append(an_event(f"e{n}", "cake"))
    assert len(ids(await store.events.find(words("cake"), ("owner",), (), 2))) == 2


async def test_unknown_words_and_no_words_find_nothing(store: Store) -> None:
    await store.events.append(an_event("e1", "cake"))
    assert await found(store, "dragon") == []
    assert ids(await store.events.find([], ("owner",), (), 10)) == []


@pytest.mark.parametrize("word", ['say "hi"', "a*", "NOT", "cat)", "^x", "said:cat", "'", "-", "+"])
async def test_no_word_is_taken_for_an_operator(store: Store, word: str) -> None:
    await store.events.append(an_event("e1", "cat"))
    assert await found(store, word) == []


async def test_every_short_part_of_a_chinese_sentence_finds_it(store: Store) -> None:
    sentences = ["张伟明天下午三点在静安寺等我", "服务器的密码已经改过了", "奶奶喜欢喝普洱茶不喜欢咖啡"]
    for n, sentence in enumerate(sentences):
        await store.events.append(an_event(f"e{n}", sentence))
    for n, sentence in enumerate(sentences):
        for length in range(1, 9):
            for start in range(len(sentence) - length + 1):
                part = sentence[start : start + length]
                term = Term(part, tuple(part[i : i + 2] for i in range(length - 1)) or (part,))
                assert f"e{n}" in ids(await store.events.find([term], ("owner",), (), 10)), part


async def test_it_counts_what_it_has(store: Store) -> None:
    empty = await store.upkeep.stats()
    assert (empty.events, empty.oldest, empty.newest) == (0, None, None)
    await store.events.append(an_event("e1", time=NOON))
    await store.events.append(an_event("e2", time=NOON + 60))
    stats = await store.upkeep.stats()
    assert (stats.events, stats.tiers, stats.oldest, stats.newest) == (2, {"context": 2}, NOON, NOON + 60)
    assert stats.bytes > 4_096


async def test_reading_does_not_wait_for_writing(store: Store) -> None:
    await store.events.append(an_event("e1", "cake"))
    writing = [asyncio.ensure_future(store.events.append(an_event(f"w{n}", "filler " * 200))) for n in range(200)]
    assert await found(store, "cake") == ["e1"]
    assert not all(task.done() for task in writing)
    await asyncio.gather(*writing)


async def test_health_says_running(store: Store) -> None:
    assert store.health()["state"] == "running"
