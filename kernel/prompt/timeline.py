"""A lane's last turns, as the model sees them: append-only between prunes, so that the prompt's beginning is cached."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from kernel.prompt.tokens import estimate_tokens

MAX_LANES: Final = 256
"""Lanes whose timeline is kept in memory; that of another is read from the journal when it is needed."""
_KEEP_AFTER_PRUNE = 2 / 3


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

    def __init__(self, turns: list[PastTurn]) -> None:
        self._turns: deque[PastTurn] = deque(turns)

    def append(self, turn: PastTurn) -> None:
        """Add the turn that just ended."""
        self._turns.append(turn)

    def within(self, max_turns: int, budget_tokens: int, protected_turns: int) -> list[PastTurn]:
        """Return the turns that fit, and forget the others.

        When they no longer fit, a third is dropped at once instead of one a turn: else every request would begin
        differently and no provider could cache it. The memory keeps what is dropped here. The last turns are kept
        for the budget's sake only as far as they fit into it: pinning ten that did not cost the original system half
        of its recall.

        :param protected_turns: how many turns stay when only ``max_turns`` would drop them
        """
        if len(self._turns) > max_turns or self._tokens() > budget_tokens:
            kept = max(int(max_turns * _KEEP_AFTER_PRUNE), min(protected_turns, max_turns))
            while len(self._turns) > kept or (self._turns and self._tokens() > budget_tokens * _KEEP_AFTER_PRUNE):
                self._turns.popleft()
        return list(self._turns)

    def _tokens(self) -> int:
        return sum(turn.tokens for turn in self._turns)


class Timelines:
    """The timelines of the lanes that spoke last.

    :param load: reads a lane's last turns, oldest first: ``(channel, conversation) -> turns``
    """

    def __init__(self, load: Callable[[str, str], Awaitable[list[PastTurn]]]) -> None:
        self._load = load
        self._timelines: OrderedDict[tuple[str, str], Timeline] = OrderedDict()

    async def of(self, channel: str, conversation: str) -> Timeline:
        """Return the timeline of a lane."""
        key = (channel, conversation)
        timeline = self._timelines.get(key)
        if timeline is None:
            timeline = self._timelines[key] = Timeline(await self._load(channel, conversation))
            if len(self._timelines) > MAX_LANES:
                self._timelines.popitem(last=False)
        self._timelines.move_to_end(key)
        return timeline
