"""Lanes: strictly one turn after another within a conversation, several conversations at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import structlog

from homeagent_sdk.bus.context import detached
from homeagent_sdk.errors import Overloaded
from kernel.turns.frame import DECIDED, TurnFrame

LaneKey = tuple[str, str]
Run = Callable[[TurnFrame], Coroutine[Any, Any, None]]
_RESERVED_FOR: Final = ("L3", "L4")
_log = structlog.get_logger("turns")


class Slots:
    """How many turns run at the same time: ``limit`` of any level, and one more kept for L3 and above.

    :param limit: asked at every turn, so that a changed setting counts at once
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._running = 0
        self._urgent_running = 0
        self._changed = asyncio.Condition()

    @property
    def running(self) -> int:
        """How many turns run."""
        return self._running + self._urgent_running

    @asynccontextmanager
    async def slot(self, level: str) -> AsyncIterator[None]:
        """Hold a slot; waits until there is one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_free(level))
            is_extra = self._running >= self._limit()
            if is_extra:
                self._urgent_running += 1
            else:
                self._running += 1
        try:
            yield
        finally:
            if is_extra:
                self._urgent_running -= 1
            else:
                self._running -= 1
            async with self._changed:
                self._changed.notify_all()

    def _is_free(self, level: str) -> bool:
        return self._running < self._limit() or (level in _RESERVED_FOR and self._urgent_running == 0)


class _Lane:
    def __init__(self) -> None:
        self.waiting: deque[TurnFrame] = deque()
        self.arriving = 0
        """Inputs that have a place here and are being recorded."""
        self.worker: asyncio.Task[None] | None = None
        self.current: asyncio.Task[None] | None = None
        self.frame: TurnFrame | None = None
        """The turn that has its turn: it runs, or waits for a slot."""


class Lanes:
    """The lanes that have something to do; an idle lane costs nothing. Nothing runs before :meth:`open`.

    :param run: runs one turn to its outcome; an exception that it lets out is logged and ends that turn only
    :param withdraw: gives a turn its outcome that was stopped before it began
    :param queue_limit: how many turns may wait in one lane
    """

    def __init__(self, run: Run, withdraw: Run, slots: Slots, queue_limit: Callable[[], int]) -> None:
        self._run = run
        self._withdraw = withdraw
        self._slots = slots
        self._queue_limit = queue_limit
        self._lanes: dict[LaneKey, _Lane] = {}
        self._is_open = False

    def open(self) -> None:
        """Let the turns run."""
        self._is_open = True
        for lane_key, lane in list(self._lanes.items()):
            self._start(lane_key, lane)

    async def close(self) -> None:
        """Cancel everything; unfinished turns stay in the journal and go on after the next start."""
        self._is_open = False
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    @contextmanager
    def room(self, lane_key: LaneKey) -> Iterator[None]:
        """Keep a place for an input while it is being accepted.

        :raises Overloaded: there is none; the message has the number of turns that wait
        """
        lane = self._lanes.setdefault(lane_key, _Lane())
        waiting = len(lane.waiting) + lane.arriving
        if waiting >= self._queue_limit():
            raise Overloaded(
                f"queue full: {waiting} messages wait in this conversation",
                hint="wait for an answer, or stop the running turn",
            )
        lane.arriving += 1
        try:
            yield
        finally:
            lane.arriving -= 1
            self._drop_if_idle(lane_key, lane)

    def add(self, frame: TurnFrame) -> None:
        """Queue an accepted turn."""
        lane = self._lanes.setdefault(frame.lane, _Lane())
        lane.waiting.append(frame)
        if self._is_open:
            self._start(frame.lane, lane)

    def stop(self, lane_key: LaneKey) -> bool:
        """Stop the turn that has its turn in a lane; False if there is none, or its outcome is settled already."""
        lane = self._lanes.get(lane_key)
        if lane is None or lane.current is None or lane.frame is None or lane.frame.step in DECIDED:
            return False
        return lane.current.cancel()

    @property
    def waiting(self) -> int:
        """How many turns wait, over all lanes."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def _start(self, lane_key: LaneKey, lane: _Lane) -> None:
        if lane.worker is None and lane.waiting:
            work = self._work(lane_key, lane)
            # Detached, since a turn outlives the call that brought it and must not share its deadline.
            lane.worker = asyncio.create_task(work, name=f"lane {lane_key[0]}", context=detached())

    async def _work(self, lane_key: LaneKey, lane: _Lane) -> None:
        try:
            while lane.waiting:
                frame = lane.waiting[0]
                await self._run_one(lane, frame, self._in_slot(lane, frame))
                if lane.waiting and lane.waiting[0] is frame:
                    lane.waiting.popleft()
                    await self._run_one(lane, frame, self._withdraw(frame))
        finally:
            lane.worker = None
            self._drop_if_idle(lane_key, lane)

    async def _in_slot(self, lane: _Lane, frame: TurnFrame) -> None:
        async with self._slots.slot(frame.level):
            lane.waiting.popleft()
            await self._run(frame)

    async def _run_one(self, lane: _Lane, frame: TurnFrame, work: Coroutine[Any, Any, None]) -> None:
        lane.current, lane.frame = asyncio.create_task(work, name=f"turn {frame.turn_id}"), frame
        try:
            await asyncio.wait({lane.current})
            if not lane.current.cancelled() and (error := lane.current.exception()) is not None:
                _log.error("turn failed", turn=frame.turn_id, exc_info=error)
        except asyncio.CancelledError:
            lane.current.cancel()
            await asyncio.wait({lane.current})
            raise
        finally:
            lane.current = lane.frame = None

    def _drop_if_idle(self, lane_key: LaneKey, lane: _Lane) -> None:
        is_idle = lane.worker is None and not lane.waiting and not lane.arriving
        if is_idle and self._lanes.get(lane_key) is lane:
            del self._lanes[lane_key]
