"""A lane's last turns, as the model sees them: append-only between prunes, so that the prompt's beginning is cached."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kernel.prompt.tokens import estimate_tokens

MAX_LANES: Final = 256
"""Lanes whose timeline is kept in memory; that of another is read from the journal when it is needed."""
_KEEP_AFTER_PRUNE = 2 / 3

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
    """The turns of one lane, oldest first."""

    def __init__(self, turns: Iterable[PastTurn]) -> None:
        self._turns: deque[tuple[PastTurn, int]] = deque((turn, turn.tokens) for turn in turns)
        self._tokens = sum(tokens for _, tokens in self._turns)

    def append(self, turn: PastTurn) -> None:
        """Add the turn that just ended."""
        tokens = turn.tokens
        self._turns.append((turn, tokens))
        self._tokens += tokens

    def within(
        self, max_turns: int, lasting_tokens: int, protected_turns: int, tokens_now: int | None = None
    ) -> list[PastTurn]:
        """Return the turns that fit, and forget those that will not fit again.

        When they no longer fit, a third is dropped at once instead of one a turn: else every request would begin
        differently and no provider could cache it. The memory keeps what is dropped here.

        :param lasting_tokens: what the timeline may cost beside an input of no length
        :param protected_turns: how many turns stay when only ``max_turns`` would drop them. Of more tokens than there
            is room for, none is pinned but the last: pinning ten cost the original system half of its recall
        :param tokens_now: what it may cost this once, beside a long input; what goes beyond is left out, not forgotten
        """
        if len(self._turns) > max_turns or self._tokens > lasting_tokens:
            self._prune(max_turns, lasting_tokens, protected_turns)
        if tokens_now is None or self._tokens <= tokens_now:
            return [turn for turn, _ in self._turns]
        return self._newest(tokens_now)

    def _prune(self, max_turns: int, lasting_tokens: int, protected_turns: int) -> None:
        kept = max(int(max_turns * _KEEP_AFTER_PRUNE), min(protected_turns, max_turns))
        # One turn that alone is too long must not push out all the others.
        self._keep(each for each in self._turns if each[1] <= lasting_tokens)
        while len(self._turns) > kept or (len(self._turns) > 1 and self._tokens > lasting_tokens * _KEEP_AFTER_PRUNE):
            self._tokens -= self._turns.popleft()[1]

    def _keep(self, turns: Iterable[tuple[PastTurn, int]]) -> None:
        self._turns = deque(turns)
        self._tokens = sum(tokens for _, tokens in self._turns)

    def _newest(self, budget_tokens: int) -> list[PastTurn]:
        chosen: list[PastTurn] = []
        for turn, tokens in reversed(self._turns):
            budget_tokens -= tokens
            if budget_tokens < 0:
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
