"""Tells the memory service of every turn that happened: at once, or when it is back, but never twice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError, Invalid
from kernel.journal import JournaledTurn
from kernel.turns.frame import TurnFrame

_BATCH: Final = 50
_MOST_WAITING: Final = 256
_APPEND_TIMEOUT_S: Final = 10.0
_MARK_AFTER_S: Final = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_log = structlog.get_logger("memory")

Event = dict[str, Any]


class Rememberer:
    """Tells the memory of turns in the order in which they ended.

    The journal is the queue that survives: what is not marked there is told after the next start, and telling twice
    changes nothing since events carry the turn id. A short queue in memory spares the way through the journal; when it
    is full, or the memory cannot be reached, the journal is read again later.

    :param unremembered: ``(limit) -> turns`` of the journal
    :param mark_remembered: marks turn ids in the journal
    """

    def __init__(
        self,
        bus: BusPeer,
        unremembered: Callable[[int], Awaitable[list[JournaledTurn]]],
        mark_remembered: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._unremembered = unremembered
        self._mark = mark_remembered
        self._waiting: deque[Event] = deque()
        self._told: list[str] = []
        self._must_read_journal = True
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with what an earlier run left."""
        self._wake.set()
        self._tasks = [
            asyncio.create_task(self._work(), name="rememberer"),
            asyncio.create_task(self._mark_for_ever(), name="rememberer-marks"),
        ]

    async def stop(self) -> None:
        """Stop; what is left is told after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._mark_told()

    def tell(self, event: Event) -> None:
        """A turn has ended and its outcome is durable."""
        self._settled.clear()
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(event)
        else:
            self._must_read_journal = True
        self._wake.set()

    def wake(self) -> None:
        """The memory service is back."""
        self._wake.set()

    async def settle(self, timeout_s: float) -> None:
        """Wait a moment until the memory knows all that happened, so that the next recall finds it."""
        if not self._settled.is_set():
            try:
                await asyncio.wait_for(self._settled.wait(), timeout_s)
            except TimeoutError:
                return

    async def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._tell_all()
                pause_s = _FIRST_PAUSE_S
            except HomeAgentError as error:
                _log.warning("the memory was not told yet", reason=str(error), again_in_s=pause_s)
                self._must_read_journal = True
                await self._wait_for_wake(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                self._wake.set()

    async def _wait_for_wake(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), pause_s)
        except TimeoutError:
            return

    async def _tell_all(self) -> None:
        while self._must_read_journal:
            self._waiting.clear()
            await self._mark_told()
            self._must_read_journal = False
            turns = await self._unremembered(_BATCH)
            for turn in turns:
                await self._append(event_of(turn))
            self._must_read_journal = self._must_read_journal or len(turns) == _BATCH
        while self._waiting:
            await self._append(self._waiting[0])
            if self._waiting:
                self._waiting.popleft()
        self._settled.set()

    async def _append(self, event: Event) -> None:
        try:
            await self._bus.call("memory.append", {"event": event}, timeout_s=_APPEND_TIMEOUT_S, idempotent=True)
        except Invalid as error:
            _log.error("the memory refuses a turn for good", turn=event["id"], reason=str(error))
        self._told.append(event["id"])

    async def _mark_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_MARK_AFTER_S)
            try:
                await self._mark_told()
            except HomeAgentError as error:
                _log.warning("told turns could not be marked", reason=str(error))

    async def _mark_told(self) -> None:
        if told := self._told[:]:
            await self._mark(told)
            del self._told[: len(told)]


def event_of(turn: JournaledTurn) -> Event:
    """Return a journaled turn as the event that the memory keeps."""
    frame = TurnFrame.unpack(turn.frame, turn.schema_version)
    return event_of_frame(frame, turn.answer or "")


def event_of_frame(frame: TurnFrame, answer: str) -> Event:
    """Return a turn as the event that the memory keeps: the words of both sides, never the prompt."""
    return {
        "id": frame.turn_id,
        "lane": {"channel": frame.channel, "conversation": frame.conversation},
        "principal": frame.principal,
        "speaker": frame.speaker or frame.principal,
        "visibility": {"principals": [frame.principal]},
        "time": frame.accepted_at,
        "input": frame.text,
        "response": answer,
        "tools_used": frame.tools_used,
        "tool_results": frame.tool_results,
        "origin": frame.kind,
        "no_memory": frame.no_memory,
    }
