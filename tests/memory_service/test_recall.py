"""What is found for a question, in what order, and when it is said that there is no record."""

from __future__ import annotations

import pytest

from memory_service.model import Hit, Term
from memory_service.recall.budget import estimated_tokens, within
from memory_service.recall.candidates import Found, event_found
from memory_service.recall.ranking import Question, is_no_record, rank
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.words.days import day_of
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event

DIARY = {
    "support": "I went to a LGBTQ support group yesterday and it was so powerful.",
    "sunrise": "I painted a lake sunrise last year, it is special to me.",
    "tea": "奶奶不喜欢咖啡，她每天早上喝普洱茶。",
    "meeting": "明天下午三点和张伟在静安寺开会。",
    "server": "The youer server is at 192.168.1.77, port 13010.",
    "other server": "The other server is at 192.168.1.78, port 13011.",
    "version": "我把修改youer服务端升级到了v2.3.1，配置在/etc/hosts。",
    "dog": "Our dog Rex hates thunder.",
    "cake": "Bea baked a cheesecake for the party on Saturday.",
    "bike": "我的自行车停在地下车库B2层。",
}


@pytest.fixture
async def diary(store: Store, segmenter: Segmenter) -> Recall:
    for n, (id, text) in enumerate(DIARY.items()):
        await store.events.append(an_event(id, text, time=NOON + n * 86_400))
    for n in range(30):
        await store.events.append(
            an_event(f"chat{n}", f"Good morning, nice weather today, is it not? {n}", "It is.", time=NOON - n)
        )
    return Recall(store, segmenter)


async def best(recall: Recall, question: str) -> str | None:
    recalled = await recall.recall(question, ("owner",))
    return None if recalled.no_record else recalled.hits[0].id


@pytest.mark.parametrize(
    ("question", "id"),
    [
        ("When did Caroline go to the LGBTQ support group?", "support"),
        ("When did she paint a sunrise?", "sunrise"),
        ("奶奶早上喝什么？", "tea"),
        ("张伟", "meeting"),
        ("我和张伟什么时候在静安寺开会？", "meeting"),
        ("what is the address of the youer server", "server"),
        ("哪台服务器用 192.168.1.78？", "other server"),
        ("服务端升级到哪个版本了", "version"),
        ("what changed in v2.3.1?", "version"),
        ("/etc/hosts", "version"),
        ("which dog is afraid of thunder", "dog"),
        ("who bakes cheesecakes?", "cake"),
        ("自行车停在哪里", "bike"),
        ("Ｒｅｘ", "dog"),
    ],
)
async def test_the_right_event_comes_first(diary: Recall, question: str, id: str) -> None:
    assert await best(diary, question) == id


@pytest.mark.parametrize(
    "question", ["What is my passport number?", "宇宙飞船的燃料怎么补给？", "?!", "quantum chromodynamics"]
)
async def test_no_record_is_said_where_there_is_none(diary: Recall, question: str) -> None:
    assert (await diary.recall(question, ("owner",))).no_record


async def test_near_misses_are_ranked_even_without_a_record(diary: Recall) -> None:
    recalled = await diary.recall("passport dragon castle emerald submarine number of the dog", ("owner",))
    assert recalled.no_record
    assert recalled.hits[0].id == "dog"


async def test_a_day_finds_what_was_said_on_it(store: Store, segmenter: Segmenter) -> None:
    day = 86_400
    for n in range(20):
        await store.events.append(an_event(f"e{n}", f"talk number {n}", time=NOON + n * day))
    recall = Recall(store, segmenter)
    month, date = day_of(NOON + 7 * day).split()[1].split("-")
    recalled = await recall.recall(f"{int(month)}月{int(date)}日我们聊了什么？", ("owner",))
    assert recalled.hits[0].id == "e7"


async def test_of_equals_the_newest_is_first(store: Store, segmenter: Segmenter) -> None:
    for n in (2, 3, 1):
        await store.events.append(an_event(f"e{n}", "the cake recipe", time=NOON + n))
    recalled = await Recall(store, segmenter).recall("cake", ("owner",))
    assert [hit.id for hit in recalled.hits] == ["e3", "e2", "e1"]


async def test_it_says_why(diary: Recall) -> None:
    recalled = await diary.recall("which dog is afraid of thunder", ("owner",))
    assert recalled.hits[0].why == "dog thunder"


async def test_a_question_in_a_long_message_is_found(diary: Recall) -> None:
    chatter = "Well I was just walking along the river this morning thinking about nothing in particular when suddenly "
    recalled = await diary.recall(chatter * 3 + "my dog Rex ran off because of thunder, he hates it", ("owner",))
    assert recalled.hits[0].id == "dog"
    assert not recalled.no_record


async def test_events_already_in_the_prompt_are_not_repeated(diary: Recall) -> None:
    recalled = await diary.recall("dog thunder", ("owner",), exclude=("dog",))
    assert "dog" not in [hit.id for hit in recalled.hits]


async def test_hits_are_whole_events_within_the_budget(store: Store, segmenter: Segmenter) -> None:
    await store.events.append(an_event("long", "cake " + "very long story " * 500))
    await store.events.append(an_event("short", "cake and tea"))
    recalled = await Recall(store, segmenter).recall("cake", ("owner",), budget_tokens=100)
    assert [hit.id for hit in recalled.hits] == ["short"]
    assert recalled.hits[0].text == "cake and tea"
    assert recalled.omitted == 1


def test_tokens_are_estimated_for_both_scripts() -> None:
    assert estimated_tokens("一二三四") == 4
    assert estimated_tokens("four" * 10) == 10
    assert estimated_tokens("") == 0


def test_the_limit_counts_hits_that_fit() -> None:
    hits = [Hit(f"e{n}", "event", "context", NOON, "Ann", "webui", "x" * 400, "", 1.0, "") for n in range(5)]
    kept, omitted = within(hits, 2, 10_000)
    assert (len(kept), omitted) == (2, 0)
    kept, omitted = within(hits, 3, 240)
    assert (len(kept), omitted) == (2, 1)


def a_found(id: str, relevance: float, *matched: int, cosine: float | None = None, time: float = NOON) -> Found:
    return event_found(an_event(id, time=time), 0, relevance, frozenset(matched)).near(cosine)


def test_an_exact_symbol_outweighs_common_words() -> None:
    question = Question([Term("server", ("server",)), Term("13010", ("13010",), is_symbol=True)], (5, 1), 100)
    hits = rank(question, [a_found("plain", 2.0, 0), a_found("exact", 1.5, 1)])
    assert [hit.id for hit in hits] == ["exact", "plain"]


def test_an_exact_symbol_outweighs_any_meaning() -> None:
    question = Question([Term("server", ("server",)), Term("13010", ("13010",), is_symbol=True)], (5, 1), 100, 0.5)
    hits = rank(question, [a_found("near", 2.0, 0, cosine=0.9), a_found("exact", 1.5, 1, cosine=0.1)])
    assert [hit.id for hit in hits] == ["exact", "near"]


def test_words_and_meaning_count_alike() -> None:
    question = Question([Term("dog", ("dog",))], (3,), 100, 0.5)
    found = [
        a_found("words", 4.0, 0, cosine=0.1),
        a_found("both", 3.0, 0, cosine=0.7),
        a_found("meaning", 0.0, cosine=0.8),
        a_found("neither", 0.5, 0, cosine=0.2),
    ]
    hits = rank(question, found)
    assert [hit.id for hit in hits] == ["both", "words", "meaning", "neither"]
    assert [hit.why for hit in hits] == ["dog (meaning)", "dog", "(meaning)", "dog"]


def test_without_meanings_words_decide_alone() -> None:
    question = Question([Term("dog", ("dog",))], (3,), 100)
    assert [hit.score for hit in rank(question, [a_found("a", 1.0, 0), a_found("b", 4.0, 0)])] == [4.0, 1.0]


def test_a_rare_word_is_enough_of_a_record_and_a_common_one_is_not() -> None:
    question = Question([Term(word, (word,)) for word in ("rex", "weather", "castle")], (1, 400, 0), 1_000)
    assert not is_no_record(question, [a_found("a", 1.0, 0)])
    assert is_no_record(question, [a_found("b", 1.0, 1)])


def test_a_meaning_that_is_near_enough_is_a_record() -> None:
    question = Question([Term("weather", ("weather",))], (400,), 1_000, enough_cosine=0.5)
    assert not is_no_record(question, [a_found("a", 0.0, cosine=0.5)])
    assert is_no_record(question, [a_found("a", 0.0, cosine=0.49)])
