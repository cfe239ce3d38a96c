"""What a turn tells those who follow it, while it runs: pieces of text, tool activity, and at the end the outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

MAX_FOLLOWERS: Final = 64
_MAX_ITEMS = 512

Item = dict[str, Any]


class _Follower:
    """One follower's queue. Text that it has not read yet is one growing item, so that a slow one costs no more."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.wake = asyncio.Event()

    def put(self, item: Item) -> None:
        last = self.items[-1] if self.items else None
        if last is not None and item["type"] in ("delta", "reasoning") and last["type"] == item["type"]:
            self.items[-1] = {"type": item["type"], "text": last["text"] + item["text"]}
        elif item["type"] == "outcome" or len(self.items) < _MAX_ITEMS:
            self.items.append(item)
        self.wake.set()


class TurnFeed:
    """The live side of one turn. It is made when the input is accepted and closed after its outcome is durable."""

    def __init__(self) -> None:
        self._text = ""
        self._is_started = False
        self._outcome: Item | None = None
        self._followers: set[_Follower] = set()

    def start(self) -> None:
        """The turn runs now."""
        if not self._is_started:
            self._is_started = True
            self._tell({"type": "started"})

    def delta(self, text: str) -> None:
        """The model wrote some text."""
        self._text += text
        self._tell({"type": "delta", "text": text})

    def reasoning(self, text: str) -> None:
        """The model thinks aloud."""
        self._tell({"type": "reasoning", "text": text})

    def tool(self, name: str, status: str) -> None:
        """A tool started, or ended as ``ok`` or ``failed``."""
        self._tell({"type": "tool", "tool": name, "status": status})

    def reset(self) -> None:
        """What the model wrote so far is void."""
        if self._text:
            self._text = ""
            self._tell({"type": "reset"})

    def close(self, outcome: Item) -> None:
        """The turn has its outcome; nothing follows."""
        self._outcome = outcome
        self._tell(outcome)

    @property
    def text(self) -> str:
        """What the model has written so far."""
        return self._text

    @property
    def has_room(self) -> bool:
        """Whether one more may follow."""
        return len(self._followers) < MAX_FOLLOWERS

    async def follow(self) -> AsyncIterator[Item]:
        """Yield what has happened so far in short, then what happens, and the outcome last."""
        follower = _Follower()
        if self._is_started:
            follower.put({"type": "started"})
        if self._text:
            follower.put({"type": "delta", "text": self._text})
        if self._outcome is not None:
            follower.put(self._outcome)
        self._followers.add(follower)
        try:
            while True:
                while follower.items:
                    item = follower.items.popleft()
                    yield item
                    if item["type"] == "outcome":
                        return
                follower.wake.clear()
                await follower.wake.wait()
        finally:
            self._followers.discard(follower)

    def _tell(self, item: Item) -> None:
        for follower in self._followers:
            follower.put(item)
