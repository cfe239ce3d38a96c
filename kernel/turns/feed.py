"""What a turn tells those who follow it, while it runs: pieces of text, tool activity, and at the end the outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

MAX_FOLLOWERS: Final = 64
_MAX_ITEMS: Final = 512
_TEXTS: Final = ("delta", "reasoning")

Item = dict[str, Any]


class _Growing:
    """A text that grows by pieces; they are put together only when somebody reads it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    def clear(self) -> None:
        self._pieces.clear()

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class _Follower:
    """One follower's queue. Text that it has not read yet is one growing item, so that a slow one costs no more.

    What does not fit is tool activity; text, resets and the outcome always arrive.
    """

    def __init__(self, outcome_only: bool) -> None:
        self._outcome_only = outcome_only
        self._items: deque[tuple[str, Item | _Growing]] = deque()
        self._wake = asyncio.Event()

    def put(self, item: Item) -> None:
        kind = item["type"]
        if self._outcome_only and kind != "outcome":
            return
        if kind == "reset":
            self._items = deque(each for each in self._items if each[0] not in (*_TEXTS, "reset"))
        if kind in _TEXTS:
            self._put_text(kind, item["text"])
        elif kind != "tool" or len(self._items) < _MAX_ITEMS:
            self._items.append((kind, item))
        self._wake.set()

    def _put_text(self, kind: str, text: str) -> None:
        last = self._items[-1] if self._items else None
        if last is None or last[0] != kind:
            last = self._same_kind(kind) if len(self._items) >= _MAX_ITEMS else None
        if last is None:
            last = (kind, _Growing())
            self._items.append(last)
        assert isinstance(last[1], _Growing)
        last[1].add(text)

    def _same_kind(self, kind: str) -> tuple[str, Item | _Growing] | None:
        return next((each for each in reversed(self._items) if each[0] == kind), None)

    async def next(self) -> Item:
        """Wait for the next item."""
        while not self._items:
            self._wake.clear()
            await self._wake.wait()
        kind, item = self._items.popleft()
        return {"type": kind, "text": item.text} if isinstance(item, _Growing) else item


class TurnFeed:
    """The live side of one turn. It is made when the input is accepted and closed after its outcome is durable."""

    def __init__(self) -> None:
        self._text = _Growing()
        self._is_started = False
        self._is_blank = True
        """Whether nothing was said that a reset would have to take back."""
        self._outcome: Item | None = None
        self._followers: set[_Follower] = set()

    def start(self) -> None:
        """The turn runs now."""
        if not self._is_started:
            self._is_started = True
            self._tell({"type": "started"})

    def delta(self, text: str) -> None:
        """The model wrote some text."""
        self._is_blank = False
        self._text.add(text)
        self._tell({"type": "delta", "text": text})

    def reasoning(self, text: str) -> None:
        """The model thinks aloud."""
        self._is_blank = False
        self._tell({"type": "reasoning", "text": text})

    def tool(self, name: str, status: str) -> None:
        """A tool started, or ended as ``ok`` or ``failed``."""
        self._tell({"type": "tool", "tool": name, "status": status})

    def reset(self) -> None:
        """What the model wrote so far is void."""
        if not self._is_blank and self._outcome is None:
            self._is_blank = True
            self._text.clear()
            self._tell({"type": "reset"})

    def close(self, outcome: Item) -> None:
        """The turn has its outcome; nothing follows. A second outcome is not told."""
        if self._outcome is None:
            self._outcome = outcome
            self._tell(outcome)

    @property
    def text(self) -> str:
        """What the model has written so far."""
        return self._text.text

    @property
    def is_closed(self) -> bool:
        """Whether the outcome was told."""
        return self._outcome is not None

    @property
    def has_room(self) -> bool:
        """Whether one more may follow."""
        return len(self._followers) < MAX_FOLLOWERS

    async def follow(self, *, outcome_only: bool = False) -> AsyncGenerator[Item, None]:
        """Yield what has happened so far in short, then what happens, and the outcome last; or the outcome alone."""
        follower = _Follower(outcome_only)
        if self._is_started:
            follower.put({"type": "started"})
        if self.text:
            follower.put({"type": "delta", "text": self.text})
        if self._outcome is not None:
            follower.put(self._outcome)
        self._followers.add(follower)
        try:
            while True:
                item = await follower.next()
                yield item
                if item["type"] == "outcome":
                    return
        finally:
            self._followers.discard(follower)

    def _tell(self, item: Item) -> None:
        for follower in self._followers:
            follower.put(item)
