"""The prompt: what it says, what it costs, and that its beginning stays the same."""

from __future__ import annotations

import pytest

from kernel.prompt import PastTurn, PromptBuilder, PromptParts, Timeline, Timelines, TokenCorrection, estimate_tokens
from kernel.prompt.timeline import MAX_LANES


def turns(count: int, words: int = 5) -> list[PastTurn]:
    return [PastTurn(f"t{number}", "word " * words, "answer") for number in range(count)]


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [("", 0, 0), ("hello world", 2, 5), ("今天天气怎么样", 4, 8), ("a" * 3800, 900, 1100), ("猫" * 1400, 900, 1100)],
)
def test_estimates_count_chinese_and_ascii_apart(text: str, least: int, most: int) -> None:
    assert least <= estimate_tokens(text) <= most


def test_the_correction_learns_from_reports_and_cannot_be_thrown() -> None:
    correction = TokenCorrection()
    for _ in range(50):
        correction.learn("s", 100, 150)
    assert 1.45 < correction.factor("s") <= 1.5
    correction.learn("s", 100, 100_000)
    assert correction.factor("s") < 2
    assert correction.factor("other") == 1.0


def test_a_timeline_is_append_only_between_prunes() -> None:
    timeline = Timeline(turns(25))
    starts = []
    for number in range(25, 60):
        timeline.append(PastTurn(f"t{number}", "word", "answer"))
        starts.append(timeline.within(30, 100_000, 10)[0].turn_id)
    assert len(set(starts)) <= 5


def test_a_timeline_keeps_within_its_budget_even_of_protected_turns() -> None:
    timeline = Timeline(turns(20, words=400))
    kept = timeline.within(30, 2000, 10)
    assert 0 < len(kept) < 10
    assert sum(turn.tokens for turn in kept) <= 2000


def test_one_giant_turn_does_not_push_out_the_others() -> None:
    timeline = Timeline([*turns(5), PastTurn("giant", "word " * 10_000, "answer"), PastTurn("last", "hi", "hello")])
    assert [turn.turn_id for turn in timeline.within(30, 2000, 10)] == ["t0", "t1", "t2", "t3", "t4", "last"]


def test_the_last_turn_stays_as_long_as_it_fits() -> None:
    timeline = Timeline([*turns(5, words=100), PastTurn("long", "word " * 1200, "answer")])
    assert [turn.turn_id for turn in timeline.within(30, 1700, 10)] == ["long"]


def test_a_long_input_leaves_out_turns_this_once() -> None:
    timeline = Timeline(turns(10, words=50))
    assert [turn.turn_id for turn in timeline.within(30, 2000, 10, 250)] == ["t7", "t8", "t9"]
    assert timeline.within(30, 2000, 10, 0) == []
    assert len(timeline.within(30, 2000, 10, 2000)) == 10


def test_what_was_pruned_stays_pruned_and_the_count_stays_right() -> None:
    timeline = Timeline(turns(100))
    kept = timeline.within(30, 100_000, 10)
    assert len(kept) == 20
    assert timeline._tokens == sum(turn.tokens for turn in kept)


async def test_a_turn_that_ends_is_in_the_timeline_once() -> None:
    journal = turns(2)

    async def load(channel: str, conversation: str, principal: str) -> list[PastTurn]:
        return list(journal)

    timelines, lane = Timelines(load), ("webui", "c1", "owner")
    journal.append(PastTurn("new", "x", "y"))
    timelines.append(lane, journal[-1])  # nobody has read this lane yet
    assert [turn.turn_id for turn in (await timelines.of(lane)).within(30, 9999, 10)] == ["t0", "t1", "new"]
    timelines.append(lane, PastTurn("newer", "x", "y"))
    assert len((await timelines.of(lane)).within(30, 9999, 10)) == 4


async def test_timelines_are_read_once_and_bounded() -> None:
    reads = []

    async def load(channel: str, conversation: str, principal: str) -> list[PastTurn]:
        reads.append(conversation)
        return turns(2)

    timelines = Timelines(load)
    for number in range(MAX_LANES + 10):
        await timelines.of(("webui", f"c{number}", "owner"))
    await timelines.of(("webui", f"c{MAX_LANES + 9}", "owner"))
    assert len(reads) == MAX_LANES + 10
    await timelines.of(("webui", "c0", "owner"))
    assert len(reads) == MAX_LANES + 11


def test_the_input_stands_last_word_for_word_and_memory_before_it() -> None:
    message = PromptBuilder().input(
        "what is\n  my cat called?",
        now=0.0,
        channel="webui",
        speaker="Anna",
        hits=[{"time": 0, "speaker": "Anna", "text": "my cat is Tom", "reply": "noted"}],
        memory_state="ok",
    )
    assert message["role"] == "user"
    assert message["content"].endswith("\nwhat is\n  my cat called?")
    assert (
        message["content"].index("<memory>")
        < message["content"].index("my cat is Tom")
        < message["content"].index("<now>")
    )


@pytest.mark.parametrize("state", ["no_record", "unreachable"])
def test_it_says_when_the_memory_has_nothing_or_cannot_be_asked(state: str) -> None:
    message = PromptBuilder().input("x", now=0.0, channel="cli", speaker="", hits=[], memory_state=state)
    assert "<memory>\n(" in message["content"]


def test_the_fixed_part_is_the_same_every_time_and_small() -> None:
    parts = PromptParts(persona="You are kind.", catalogue=["timer: timers"])
    assert PromptBuilder().fixed(parts) == PromptBuilder().fixed(parts)
    assert estimate_tokens(PromptBuilder().fixed(PromptParts())["content"]) < 400


def test_a_turn_without_an_answer_keeps_its_text_and_says_why() -> None:
    user, assistant = PastTurn("t", "my dog is Rex", None, "error: far end is down").messages()
    assert user["content"] == "my dog is Rex"
    assert "error" in assistant["content"]
