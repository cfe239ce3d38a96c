"""A lane's last turns, as the model sees them: append-only between prunes, so that the prompt's beginning is cached."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kernel.prompt.tokens import estimate_tokens

MAX_LANES: Final = 256
"""Lanes whose timeline is kept in memory; that of another is read from the journal when it is needed."""
MOST_HELD: Final = 512
"""Turns of a lane that are held while the memory cannot take part in a prune."""
AFTER_PRUNE: Final = 2 / 3
"""So much of the budget a prune fills, so that the next turns need none: else every request would begin differently."""

LaneOf = tuple[str, str, str]
"""Channel, conversation, principal: where two principals use one lane, neither sees what the other said."""


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn that happened. ``answer`` is None where there was none; ``note`` then says why."""

    turn_id: str
    text: str
    answer: str | None
    note: str = ""

    @property
    def tokens(self) -> int:
        """Estimated size."""
        return estimate_tokens(self.text) + estimate_tokens(self.answer or self.note) + 8

    def messages(self) -> list[dict[str, Any]]:
        """Return the turn as messages of a request."""
        answer = self.answer if self.answer else f"[{self.note or 'no answer'}]"
        return [{"role": "user", "content": self.text}, {"role": "assistant", "content": answer}]


class Timeline:
    """The turns of one lane as its prompt shows them, oldest first; after a prune also what other lanes had to say.

    :ivar is_pruned: something was moved to the archive, so that the model is told that this is not all
    """

    def __init__(self, turns: Iterable[PastTurn]) -> None:
        self.is_pruned = False
        self._hold(turns)

    def append(self, turn: PastTurn) -> None:
        """Add the turn that just ended. Of more than can be held, the oldest is let go: journal and memory have it."""
        tokens = turn.tokens
        self._turns.append((turn, tokens))
        self._tokens += tokens
        if len(self._turns) > MOST_HELD:
            self._tokens -= self._turns.popleft()[1]

    @property
    def turns(self) -> list[PastTurn]:
        """All turns that are held, whether they fit or not."""
        return [turn for turn, _ in self._turns]

    def is_within(self, max_turns: int, budget_tokens: int) -> bool:
        """Tell whether all of it fits."""
        return len(self._turns) <= max_turns and self._tokens <= budget_tokens

    def fitting(self, max_turns: int, budget_tokens: int) -> list[PastTurn]:
        """Return the newest turns that fit; nothing is forgotten. One that alone is too long pushes out no other."""
        if self.is_within(max_turns, budget_tokens):
            return self.turns
        return _newest((each for each in reversed(self._turns) if each[1] <= budget_tokens), max_turns, budget_tokens)

    def last(self, protected: int, max_turns: int, budget_tokens: int) -> list[PastTurn]:
        """Return the last turns that stay whatever a prune does.

        Never more than there is room for, and half of what a prune leaves at most, but for the very last one: pinning
        ten long turns cost the original system half of its recall.
        """
        costs = [tokens for _, tokens in self._turns if tokens <= budget_tokens]
        if not costs:
            return []
        affordable = max(1, budget_tokens * len(costs) // max(sum(costs), 1))
        count = min(protected, affordable, max(1, int(max_turns * AFTER_PRUNE)))
        newest = [each for each in list(self._turns)[-count:][::-1] if each[1] <= budget_tokens]
        half = int(budget_tokens * AFTER_PRUNE / 2)
        return _newest(newest, count, half) or [turn for turn, _ in newest[:1]]

    def renew(self, chosen: Iterable[PastTurn], last: Sequence[PastTurn], max_turns: int, budget_tokens: int) -> None:
        """Take what a prune has left in place of all that there was.

        :param chosen: what the memory chose for this prompt, oldest first
        :param last: what :meth:`last` returned
        """
        left = int(budget_tokens * AFTER_PRUNE) - sum(turn.tokens for turn in last)
        priced = [(turn, turn.tokens) for turn in chosen]
        # The memory counts by its own estimate.
        self._hold([*_newest(reversed(priced), max_turns - len(last), left), *last])
        self.is_pruned = True

    def _hold(self, turns: Iterable[PastTurn]) -> None:
        self._turns: deque[tuple[PastTurn, int]] = deque((turn, turn.tokens) for turn in turns)
        self._tokens = sum(tokens for _, tokens in self._turns)


def _newest(newest_first: Iterable[tuple[PastTurn, int]], most: int, budget_tokens: int) -> list[PastTurn]:
    """Return the first of these turns that fit together, oldest first."""
    chosen: list[PastTurn] = []
    for turn, tokens in newest_first:
        budget_tokens -= tokens
        if budget_tokens < 0 or len(chosen) >= most:
            break
        chosen.append(turn)
    return chosen[::-1]


class Timelines:
    """The timelines of the lanes that spoke last.

    :param load: reads a lane's last turns, oldest first
    """

    def __init__(self, load: Callable[[str, str, str], Awaitable[list[PastTurn]]]) -> None:
        self._load = load
        self._timelines: OrderedDict[LaneOf, Timeline] = OrderedDict()

    async def of(self, lane: LaneOf) -> Timeline:
        """Return the timeline of a lane."""
        timeline = self._timelines.get(lane)
        if timeline is None:
            timeline = self._timelines[lane] = Timeline(await self._load(*lane))
            if len(self._timelines) > MAX_LANES:
                self._timelines.popitem(last=False)
        self._timelines.move_to_end(lane)
        return timeline

    def append(self, lane: LaneOf, turn: PastTurn) -> None:
        """Add the turn that just ended, after it was recorded; a timeline that is read later finds it there."""
        timeline = self._timelines.get(lane)
        if timeline is not None:
            timeline.append(turn)

    def clear(self) -> None:
        """Read every timeline anew when it is needed next: the journal has changed behind their back."""
        self._timelines.clear()
