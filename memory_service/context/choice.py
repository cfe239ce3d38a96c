"""Who stays in the window: counted in tokens, chosen by likeness to the input, never by position alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memory_service.model import InContext

STAYING_CHANNELS: Final = frozenset({"agentcli", "terminal"})
"""Channels whose events never become documents: programs read them back word for word."""

EVENT_OVERHEAD_TOKENS: Final = 16
"""What the prompt puts around an event: its time, its channel, its speaker."""

_FILLED: Final = 2 / 3
"""So much of the budget is filled again, so that the next turns fit without another prune."""

_PINNED: Final = 1 / 2
"""So much of that may be held by protected events. Pinning all there was cost the original half of its recall."""

_LIKE_NOTHING: Final = -1.0

Lane = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """What there is room for.

    :ivar budget_tokens: what all events of a window may cost, with those that the caller shows by itself
    :ivar kept_tokens: what those cost
    :ivar max_events: how many events there may be, with those
    :ivar protected: how many of the last events of a lane stay, as far as they fit
    """

    budget_tokens: int
    kept_tokens: int
    max_events: int
    protected: int

    @property
    def filled_tokens(self) -> int:
        """What the window costs after a prune."""
        return int(self.budget_tokens * _FILLED)


@dataclass(frozen=True, slots=True)
class Sides:
    """The events of a context, by what may become of them.

    :ivar sure: shown whatever the input is: the last ones of the lane
    :ivar competing: shown if they are like the input
    :ivar staying: numbers of those among the competing that stay in the context even if they are not shown
    """

    sure: tuple[InContext, ...]
    competing: tuple[InContext, ...]
    staying: frozenset[int]

    @property
    def movable(self) -> Iterator[InContext]:
        """Those that may leave the context."""
        return (event for event in self.competing if event.number not in self.staying)


def cost(event: InContext) -> int:
    """Return what an event costs in a prompt."""
    return event.tokens + EVENT_OVERHEAD_TOKENS


def protected_count(events: Sequence[InContext], limits: Limits) -> int:
    """Return how many events of a lane are protected: as many as configured, but no more than there is room for.

    An event that alone is longer than the window says nothing of the others.
    """
    costs = [cost(event) for event in events if cost(event) <= limits.budget_tokens]
    if not costs:
        return min(limits.protected, 1)
    return min(limits.protected, max(1, int(limits.budget_tokens * len(costs) / sum(costs))))


def take_sides(events: Sequence[InContext], lane: Lane, kept: Collection[str], limits: Limits) -> Sides:
    """Sort the events of a context out.

    :param events: newest first
    :param kept: ids of events that the caller shows by itself; they are the lane's last
    """
    count = protected_count(events, limits)
    seen: Counter[Lane] = Counter()
    sure: list[InContext] = []
    competing: list[InContext] = []
    staying: set[int] = set()
    room = limits.filled_tokens * _PINNED - limits.kept_tokens
    for event in events:
        own = (event.channel, event.conversation)
        seen[own] += 1
        if event.id in kept:
            continue
        is_protected = seen[own] <= count
        if is_protected and own == lane and cost(event) <= room:
            room -= cost(event)
            sure.append(event)
            continue
        competing.append(event)
        if is_protected or event.channel in STAYING_CHANNELS:
            staying.add(event.number)
    return Sides(tuple(sure), tuple(competing), frozenset(staying))


def choose(sides: Sides, likeness: Mapping[int, float], kept_count: int, limits: Limits) -> tuple[InContext, ...]:
    """Return the events of the window: those that are sure, and the likest others that fit. Of equals, the newest.

    :param likeness: how like the input each is, by number; all of them measured in the same way
    :param kept_count: how many events the caller shows by itself
    """
    room = limits.filled_tokens - limits.kept_tokens - sum(map(cost, sides.sure))
    places = max(int(limits.max_events * _FILLED), kept_count + len(sides.sure) + 1) - kept_count - len(sides.sure)
    chosen = list(sides.sure)

    def place(event: InContext) -> tuple[float, float, int]:
        return -likeness.get(event.number, _LIKE_NOTHING), -event.time, -event.number

    for event in sorted(sides.competing, key=place):
        if places and cost(event) <= room:
            room -= cost(event)
            places -= 1
            chosen.append(event)
    return tuple(chosen)


def is_full(sides: Sides, kept_count: int, limits: Limits) -> bool:
    """Whether there is more than the window holds, so that something must leave.

    Right after a prune there is not; so a call that is repeated moves nothing more.
    """
    counted = [*sides.sure, *sides.movable]
    tokens = limits.kept_tokens + sum(map(cost, counted))
    return tokens > limits.budget_tokens or kept_count + len(counted) > limits.max_events


def slices(events: Sequence[InContext], most_events: int, most_tokens: int) -> Iterator[list[InContext]]:
    """Cut events into pieces for one transaction each, in order."""
    piece: list[InContext] = []
    tokens = 0
    for event in events:
        if piece and (len(piece) == most_events or tokens + event.tokens > most_tokens):
            yield piece
            piece, tokens = [], 0
        piece.append(event)
        tokens += event.tokens
    if piece:
        yield piece
