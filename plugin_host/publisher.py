"""Events of the supervision, handed to the ring in order without keeping anyone waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from homeagent_sdk.bus.abc import BusPeer
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.logging import get_logger

_MOST_WAITING = 256
_log = get_logger("publisher")


class Publisher:
    """Publishes from a queue of 256 events; while the kernel is away the oldest give way, counted."""

    def __init__(self, peer: BusPeer) -> None:
        self._peer = peer
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_MOST_WAITING)
        self._has_some = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def publish(self, topic: str, payload: dict[str, Any]) -> None:
        """Put an event in the queue."""
        if len(self._waiting) == _MOST_WAITING:
            self.dropped += 1
        self._waiting.append((topic, payload))
        self._is_empty.clear()
        self._has_some.set()

    def start(self) -> None:
        """Begin to publish."""
        self._task = asyncio.create_task(self._run(), name="publisher")

    async def stop(self, flush_s: float = 0.5) -> None:
        """Publish what waits, within ``flush_s`` seconds, and stop."""
        if self._task is None:
            return
        flush = asyncio.create_task(self._is_empty.wait())
        await asyncio.wait({flush}, timeout=flush_s)
        for task in (flush, self._task):
            task.cancel()
        await asyncio.gather(flush, self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            await self._drain()
            self._is_empty.set()

    async def _drain(self) -> None:
        while self._waiting:
            topic, payload = self._waiting.popleft()
            try:
                await self._peer.publish(topic, payload)
            except HomeAgentError as error:
                self.dropped += 1
                _log.warning("an event was dropped", topic=topic, reason=str(error), dropped=self.dropped)
