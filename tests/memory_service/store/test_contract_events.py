"""What any store of events must do."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from homeagent_sdk.errors import Invalid
from memory_service.model import Search, Term, ToolResult, estimated_tokens
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
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


async def test_many_are_stored_in_order_and_those_known_are_left_as_they_are(store: Store) -> None:
    await store.events.append(an_event("e3", "the first word on it"))
    events = [an_event(f"e{n}", f"word{n} common", time=NOON + n) for n in range(300)]
    assert await store.events.append_many(events) == 299
    assert await store.events.append_many(events) == 0
    assert (await store.upkeep.stats()).events == 300
    assert (await store.events.get(["e3"]))[0].input == "the first word on it"
    assert [event.id for _, event in await store.log.following(1, 3, 1_000)] == ["e0", "e1", "e2"]
    assert await store.events.append_many([]) == 0


async def test_the_same_id_twice_in_one_call_is_stored_once(store: Store) -> None:
    assert await store.events.append_many([an_event("e1", "one"), an_event("e1", "two"), an_event("e2")]) == 2
    assert (await store.events.get(["e1"]))[0].input == "one"


async def test_the_same_events_from_many_callers_at_once_are_stored_once(store: Store) -> None:
    events = [an_event(f"e{n}", f"word{n}") for n in range(60)]
    counts = await asyncio.gather(
        *(store.events.append_many(events) for _ in range(4)), *(store.events.append(event) for event in events)
    )
    assert sum(counts) == 60
    assert (await store.upkeep.stats()).events == 60


async def test_live_appends_go_before_what_is_stored_in_bulk(store: Store) -> None:
    bulk = asyncio.ensure_future(
        store.events.append_many([an_event(f"b{n}", "many words of an import " * 20) for n in range(400)])
    )
    for n in range(5):
        assert await store.events.append(an_event(f"live{n}", "hello"))
        assert not bulk.done()
    assert await bulk == 400


async def test_very_long_and_very_short_events_come_in_one_call(store: Store) -> None:
    sizes = [0, 1, 200_000, 5, 50_000, 0, 3]
    events = [an_event(f"e{n}", "long " * size) for n, size in enumerate(sizes)]
    assert await store.events.append_many(events) == len(events)
    found = {event.id: event for event in await store.events.get([event.id for event in events])}
    assert all(found[event.id] == event for event in events)


async def test_events_come_back_oldest_first_and_unknown_ids_are_left_out(store: Store) -> None:
    for n in (2, 0, 1):
        await store.events.append(an_event(f"e{n}", time=NOON + n))
    assert [event.id for event in await store.events.get(["e1", "absent", "e2", "e0"])] == ["e0", "e1", "e2"]
    assert await store.events.missing(["e1", "absent", "e2"]) == ("absent",)
    assert await store.events.get([]) == () and await store.events.missing([]) == ()


async def test_what_nobody_may_see_is_not_taken_for_what_everybody_may(store: Store) -> None:
    nobodys = replace(an_event("nobody's", "cake"), visible_to=())
    with pytest.raises(Invalid):
        await store.events.append(nobodys)
    with pytest.raises(Invalid):
        await store.events.append_many([an_event("all's", "cake", sees=()), nobodys])
    assert await found(store, "cake") == []


async def test_by_number_shows_only_what_the_audience_may_see(store: Store) -> None:
    for id, sees in (("ann's", ("ann",)), ("both's", ("ann", "bea")), ("all's", ())):
        await store.events.append(an_event(id, sees=sees))
    numbers = range(100)
    for audience, expected in (
        (("ann",), {"ann's", "both's", "all's"}),
        (("ann", "bea"), {"both's", "all's"}),
        (("nobody",), {"all's"}),
        (None, {"ann's", "both's", "all's"}),
    ):
        found = await store.events.by_number(numbers, audience)
        assert {event.id for event in found.values()} == expected


async def test_the_context_is_one_persons_newest_first_and_only_what_all_may_see(store: Store) -> None:
    await store.events.append(an_event("old", "four", principal="ann", sees=("ann",), time=NOON))
    await store.events.append(an_event("new", "twelve more letters", "yes", principal="ann", sees=(), time=NOON + 60))
    await store.events.append(an_event("between", principal="ann", sees=("ann", "bea"), time=NOON + 30))
    await store.events.append(an_event("bea's", principal="bea", sees=(), time=NOON + 90))
    for audience, expected in (
        (("ann",), ["new", "between", "old"]),
        (("ann", "bea"), ["new", "between"]),
        (("carl",), ["new"]),
    ):
        found = await store.events.in_context("ann", audience, 10)
        assert [item.id for item in found] == expected
    (newest,) = await store.events.in_context("ann", ("ann",), 1)
    assert (newest.channel, newest.conversation, newest.time) == ("webui", "c1", NOON + 60)
    assert newest.tokens == estimated_tokens("twelve more letters") + estimated_tokens("yes")
    assert (await store.events.by_number([newest.number], None))[newest.number].id == "new"


async def test_given_events_are_weighed_by_their_words(store: Store) -> None:
    for id, text in (("one", "the cat slept"), ("two", "the cat slept on the sofa"), ("none", "a dog")):
        await store.events.append(an_event(id, text))
    numbers = {event.id: number for number, event in (await store.events.by_number(range(10), None)).items()}
    weights = await store.events.relevance(words("cat", "sofa"), numbers.values())
    assert set(weights) == {numbers["one"], numbers["two"]}
    assert weights[numbers["two"]] > weights[numbers["one"]]
    assert await store.events.relevance(words("cat"), [numbers["none"]]) == {}


async def test_a_day_written_in_a_text_is_found_by_any_spelling(store: Store, segmenter: Segmenter) -> None:
    await store.events.append(an_event("zh", "我们5月7日去看海", time=NOON + 30 * 86_400))
    await store.events.append(an_event("en", "we go on May 7th, if it is warm", time=NOON + 30 * 86_400))
    await store.events.append(an_event("other", "we go on May 8th", time=NOON + 30 * 86_400))
    for question in ("5月7日", "what was on May 7?", "7 May", "５月７号"):
        search = await store.events.find(terms(question, segmenter), ("owner",), (), 10)
        assert {"zh", "en"} <= set(ids(search))
        assert "other" not in ids(search)[:2]
