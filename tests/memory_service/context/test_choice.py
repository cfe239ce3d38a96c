"""Who stays in the window: counted in tokens, chosen by likeness."""

from __future__ import annotations

import pytest

from memory_service.context.choice import (
    EVENT_OVERHEAD_TOKENS,
    Limits,
    choose,
    cost,
    is_full,
    protected_count,
    slices,
    take_sides,
)
from memory_service.model import InContext

LANE = ("webui", "c1")


def events(count: int, tokens: int = 100, channel: str = "webui", conversation: str = "c1") -> list[InContext]:
    """Events of one lane, newest first; their numbers rise with time."""
    size = tokens - EVENT_OVERHEAD_TOKENS
    return [
        InContext(f"{conversation}-{number}", number, channel, conversation, float(number), size)
        for number in range(count, 0, -1)
    ]


def limits(budget: int = 3_000, *, kept: int = 0, most: int = 1_000, protected: int = 10) -> Limits:
    return Limits(budget, kept, most, protected)


def numbers(some: tuple[InContext, ...]) -> list[int]:
    return sorted(event.number for event in some)


def test_failure_1_no_more_events_are_protected_than_there_is_room_for() -> None:
    assert protected_count(events(30, 5_800), limits(40_000)) == 6
    sides = take_sides(events(30, 5_800), LANE, (), limits(40_000))
    assert len(sides.sure) == 2
    assert len(choose(sides, {1: 1.0}, 0, limits(40_000))) == 4


def test_short_events_are_protected_as_configured() -> None:
    assert protected_count(events(30), limits(40_000)) == 10
    assert protected_count([], limits(40_000)) == 1


def test_failure_2_one_event_longer_than_the_budget_archives_nothing_else() -> None:
    giant = InContext("giant", 99, *LANE, 99.0, 50_000)
    all_events = [giant, *events(9)]
    sides = take_sides(all_events, LANE, (), limits())
    assert 99 not in numbers(sides.sure)
    assert 99 in sides.staying
    assert numbers(choose(sides, {}, 0, limits())) == list(range(1, 10))
    assert not is_full(sides, 0, limits())


def test_failure_3_a_prune_leaves_room_so_that_the_next_call_is_none() -> None:
    for size in (50, 700, 2_900, 3_100):
        sides = take_sides(events(40, size), LANE, (), limits())
        chosen = choose(sides, {}, 0, limits())
        left = [event for event in events(40, size) if event in chosen or event.number in sides.staying]
        assert not is_full(take_sides(left, LANE, (), limits()), 0, limits())


def test_failure_4_what_fits_is_counted_in_tokens_not_in_events() -> None:
    sides = take_sides(events(500, 1_000), LANE, (), limits(10_000))
    assert sum(map(cost, choose(sides, {}, 0, limits(10_000)))) <= 10_000 * 2 / 3


def test_the_likest_events_win_wherever_they_stand() -> None:
    likeness = {number: 0.9 for number in (1, 17, 33)}
    chosen = choose(take_sides(events(200), LANE, (), limits()), likeness, 0, limits())
    assert {1, 17, 33} < set(numbers(chosen))
    assert len(chosen) == 20


def test_of_equally_like_events_the_newest_win() -> None:
    chosen = choose(take_sides(events(200), LANE, (), limits()), {}, 0, limits())
    assert numbers(chosen) == list(range(181, 201))


def test_a_long_event_gives_way_to_the_next_that_fits() -> None:
    some = [InContext("long", 50, *LANE, 50.0, 2_500), *events(30)]
    chosen = choose(take_sides(some, LANE, (), limits(protected=1)), {50: 0.9, 3: 0.8, 2: 0.7}, 0, limits())
    assert 3 in numbers(chosen)


def test_the_last_events_of_every_lane_stay_and_those_of_this_one_are_shown() -> None:
    here, there = (
        events(30),
        [
            InContext(f"o{event.number}", event.number + 100, "telegram", "x", event.time, event.tokens)
            for event in events(30)
        ],
    )
    sides = take_sides([*here, *there], LANE, (), limits(protected=3))
    assert numbers(sides.sure) == [28, 29, 30]
    assert sides.staying == {128, 129, 130}
    assert not sides.staying & set(numbers(tuple(sides.movable)))


def test_what_the_caller_keeps_is_neither_shown_twice_nor_moved() -> None:
    kept = frozenset({"c1-30", "c1-29"})
    sides = take_sides(events(30), LANE, kept, limits(kept=200, protected=4))
    assert numbers(sides.sure) == [27, 28]
    assert {29, 30}.isdisjoint(numbers(sides.competing))
    assert sum(map(cost, choose(sides, {}, 2, limits(kept=200)))) + 200 <= 2_000


@pytest.mark.parametrize("channel", ["agentcli", "terminal"])
def test_events_of_programs_stay_in_the_context(channel: str) -> None:
    sides = take_sides(events(60, channel=channel), LANE, (), limits())
    assert list(sides.movable) == []
    assert not is_full(sides, 0, limits())


def test_there_are_never_more_events_than_asked_for() -> None:
    sides = take_sides(events(60, 20), LANE, (), limits(most=9, protected=3))
    assert len(choose(sides, {}, 0, limits(most=9))) == 6
    assert is_full(sides, 0, limits(most=9))


def test_where_the_kept_turns_take_all_places_one_event_more_is_shown() -> None:
    sides = take_sides(events(60), LANE, (), limits(most=6, protected=1))
    assert len(choose(sides, {}, 6, limits(most=6))) == 1 + len(sides.sure)


def test_a_slice_is_bounded_by_events_and_by_tokens() -> None:
    assert [len(piece) for piece in slices(events(130), 64, 10**9)] == [64, 64, 2]
    assert [len(piece) for piece in slices(events(5, 1_016), 64, 2_000)] == [2, 2, 1]
    assert [len(piece) for piece in slices(events(2, 9_999), 64, 2_000)] == [1, 1]
    assert list(slices([], 64, 1)) == []
