"""A fake kernel whose turns go on while the test decides what happens next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import NotFound, Unavailable
from homeagent_sdk.testing import FakeKernel, outcome


class Feed:
    """The items of one turn, as far as it has come; everyone who follows gets all of them."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = [{"type": "started"}]
        self.changed = asyncio.Condition()
        self.breaks = 0
        """How many times the followers were cut off, as if the kernel had died."""

    async def add(self, *items: dict[str, Any]) -> None:
        async with self.changed:
            self.items.extend(items)
            self.changed.notify_all()

    async def say(self, text: str) -> None:
        await self.add({"type": "delta", "text": text})

    async def end(self, text: str, kind: str = "answer", **extra: Any) -> None:
        await self.add(outcome(text, kind, **extra))

    async def cut_off(self, *items: dict[str, Any]) -> None:
        """Break the connection of all followers; who comes again gets ``items`` in place of what was."""
        async with self.changed:
            self.breaks += 1
            self.items = list(items)
            self.changed.notify_all()


class LiveKernel(FakeKernel):
    """Turns stay open until their :class:`Feed` ends; ``feeds`` has them by turn id."""

    def __init__(self) -> None:
        super().__init__()
        self.feeds: dict[str, Feed] = {}
        self._accepted = asyncio.Condition()
        self.followed = 0
        self.authentications = 0

    async def feed(self, turn_id: str = "t1") -> Feed:
        """Wait until a turn was accepted, and return its feed."""
        async with asyncio.timeout(10), self._accepted:
            await self._accepted.wait_for(lambda: turn_id in self.feeds)
        return self.feeds[turn_id]

    async def _submit(self, body: Any, call: CallContext) -> dict[str, Any]:
        answer = await super()._submit(body, call)
        async with self._accepted:
            self.feeds.setdefault(answer["turn_id"], Feed())
            self._accepted.notify_all()
        return answer

    async def _authenticate(self, body: Any, call: CallContext) -> dict[str, Any]:
        self.authentications += 1
        return await super()._authenticate(body, call)

    async def _follow(self, body: Any, call: CallContext) -> AsyncIterator[Any]:
        feed = self.feeds.get(body["turn_id"])
        if feed is None:
            raise NotFound(f"there is no turn {body['turn_id']}")
        self.followed += 1
        breaks, given = feed.breaks, 0
        while True:
            async with feed.changed:
                while feed.breaks == breaks and len(feed.items) == given:
                    await feed.changed.wait()
            if feed.breaks != breaks:
                raise Unavailable("the kernel is gone")
            item = feed.items[given]
            given += 1
            yield item
            if item["type"] == "outcome":
                return

    async def _history(self, body: Any, call: CallContext) -> dict[str, Any]:
        turns = (await super()._history(body, call))["turns"]
        for turn in turns:
            last = self.feeds[turn["turn_id"]].items[-1]
            turn["outcome"], turn["answer"] = last.get("outcome"), last.get("text", "")
        return {"turns": turns}
