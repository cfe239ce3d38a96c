"""Tells the memory service of every turn that happened: at once, or when it is back, but never twice."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError, Internal, Invalid
from kernel.journal import JournaledTurn
from kernel.turns.frame import TurnFrame

_BATCH: Final = 50
_MOST_WAITING: Final = 256
_APPEND_TIMEOUT_S: Final = 10.0
_MARK_AFTER_S: Final = 1.0
_MOST_FAILURES: Final = 5
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
        self._failures: Counter[str] = Counter()
        self._set_aside: set[str] = set()
        """Turns that the memory cannot take; they stay unmarked in the journal."""
        self._must_read_journal = True
        self._is_telling_from_journal = False
        self._marking = asyncio.Lock()
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
        await self._try_to_mark()

    def tell(self, event: Event) -> None:
        """A turn has ended and its outcome is durable."""
        self._settled.clear()
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(event)
        else:
            self._must_read_journal = True
        self._wake.set()

    def read_again(self) -> None:
        """Tell nothing that is not in the journal any more: turns were forgotten there."""
        self._waiting.clear()
        self._must_read_journal = True
        self._wake.set()

    def wake(self) -> None:
        """The memory service is back."""
        if self._set_aside:
            self._set_aside.clear()
            self._failures.clear()
            self._must_read_journal = True
        self._wake.set()

    async def settle(self, timeout_s: float, lane: tuple[str, str]) -> None:
        """Wait a moment until the memory knows what happened in other lanes, so that the next recall finds it.

        :param lane: the lane that asks: it has its own last turns in the prompt
        """
        own = {"channel": lane[0], "conversation": lane[1]}
        is_queue_all = not self._must_read_journal and not self._is_telling_from_journal
        if self._settled.is_set() or (is_queue_all and all(event["lane"] == own for event in self._waiting)):
            return
        await _moment(self._settled, timeout_s)

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
                await _moment(self._wake, pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                self._wake.set()

    async def _tell_all(self) -> None:
        while self._must_read_journal:
            await self._tell_from_journal()
        while self._waiting:
            await self._append(self._waiting[0])
            if self._waiting:
                self._waiting.popleft()
        self._settled.set()

    async def _tell_from_journal(self) -> None:
        self._is_telling_from_journal = True
        self._waiting.clear()
        await self._mark_told()
        self._must_read_journal = False
        turns = await self._unremembered(_BATCH + len(self._set_aside))
        self._must_read_journal = self._must_read_journal or len(turns) >= _BATCH + len(self._set_aside)
        for turn in turns:
            if turn.turn_id not in self._set_aside:
                await self._append_turn(turn)
        # What ended meanwhile is in the queue, and perhaps was read from the journal as well.
        known = {turn.turn_id for turn in turns}
        self._waiting = deque(event for event in self._waiting if event["id"] not in known)
        self._is_telling_from_journal = False

    async def _append_turn(self, turn: JournaledTurn) -> None:
        try:
            event = event_of(turn)
        except HomeAgentError as error:
            _log.error("a turn cannot be told to the memory", turn=turn.turn_id, reason=str(error))
            self._set_aside.add(turn.turn_id)
            return
        await self._append(event)

    async def _append(self, event: Event) -> None:
        turn_id = event["id"]
        try:
            await self._bus.call("memory.append", {"event": event}, timeout_s=_APPEND_TIMEOUT_S, idempotent=True)
        except Invalid as error:
            _log.error("the memory refuses a turn for good", turn=turn_id, reason=str(error))
        except Internal as error:
            self._failures[turn_id] += 1
            if self._failures[turn_id] < _MOST_FAILURES:
                raise
            # The rest must not wait for it for ever; the next start tries it again.
            _log.error("the memory fails at a turn again and again", turn=turn_id, reason=str(error))
            self._set_aside.add(turn_id)
            return
        self._told.append(turn_id)

    async def _mark_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_MARK_AFTER_S)
            await self._try_to_mark()

    async def _try_to_mark(self) -> None:
        try:
            await self._mark_told()
        except HomeAgentError as error:
            _log.warning("told turns could not be marked", reason=str(error))

    async def _mark_told(self) -> None:
        async with self._marking:
            if told := self._told[:]:
                await self._mark(told)
                del self._told[: len(told)]


async def _moment(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but not long. ``wait_for`` would swallow a cancel that comes together with the event."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def event_of(turn: JournaledTurn) -> Event:
    """Return a journaled turn as the event that the memory keeps."""
    return event_of_frame(TurnFrame.unpack(turn.frame, turn.schema_version), turn.answer or "")


def event_of_frame(frame: TurnFrame, answer: str) -> Event:
    """Return a turn as the event that the memory keeps: the words of both sides, never the prompt."""
    return {
        "id": frame.turn_id,
        "lane": {"channel": frame.channel, "conversation": frame.conversation},
        "principal": frame.principal,
        "speaker": frame.speaker or frame.principal,
        "visibility": {"principals": [frame.principal]},
        "time": frame.accepted_at,
        "input": frame.message,
        "response": answer,
        "tools_used": frame.tools_used,
        "tool_results": frame.tool_results,
        "origin": frame.kind,
        "no_memory": frame.no_memory,
    }
