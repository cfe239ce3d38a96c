"""Lanes: strictly one turn after another within a conversation, several conversations at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from homeagent_sdk.errors import Overloaded
from kernel.turns.frame import TurnFrame

LaneKey = tuple[str, str]
Run = Callable[[TurnFrame], Awaitable[None]]
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
        self.worker: asyncio.Task[None] | None = None
        self.current: asyncio.Task[None] | None = None


class Lanes:
    """The lanes that have something to do; an idle lane costs nothing.

    :param run: runs one turn to its outcome; an exception that it lets out is logged and ends that turn only
    :param queue_limit: how many turns may wait in one lane
    """

    def __init__(self, run: Run, slots: Slots, queue_limit: Callable[[], int]) -> None:
        self._run = run
        self._slots = slots
        self._queue_limit = queue_limit
        self._lanes: dict[LaneKey, _Lane] = {}

    def check_room(self, lane_key: LaneKey) -> None:
        """Refuse an input before it is accepted, if its lane is full.

        :raises Overloaded: naming the number of turns that wait
        """
        lane = self._lanes.get(lane_key)
        if lane is not None and len(lane.waiting) >= self._queue_limit():
            raise Overloaded(
                f"queue full: {len(lane.waiting)} messages wait in this conversation",
                hint="wait for an answer, or stop the running turn",
            )

    def add(self, frame: TurnFrame) -> None:
        """Queue an accepted turn."""
        lane = self._lanes.setdefault(frame.lane, _Lane())
        lane.waiting.append(frame)
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(frame.lane, lane), name=f"lane {frame.channel}")

    def stop(self, lane_key: LaneKey) -> bool:
        """Cancel the turn that runs in a lane; False if none does."""
        lane = self._lanes.get(lane_key)
        if lane is None or lane.current is None:
            return False
        return lane.current.cancel()

    @property
    def waiting(self) -> int:
        """How many turns wait, over all lanes."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    async def close(self) -> None:
        """Cancel everything; unfinished turns stay in the journal and go on after the next start."""
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, lane_key: LaneKey, lane: _Lane) -> None:
        try:
            while lane.waiting:
                frame = lane.waiting[0]
                async with self._slots.slot(frame.level):
                    lane.waiting.popleft()
                    await self._run_one(lane, frame)
        finally:
            lane.worker = None
            if self._lanes.get(lane_key) is lane and not lane.waiting:
                del self._lanes[lane_key]

    async def _run_one(self, lane: _Lane, frame: TurnFrame) -> None:
        async def run() -> None:
            await self._run(frame)

        lane.current = asyncio.create_task(run(), name=f"turn {frame.turn_id}")
        try:
            await asyncio.wait({lane.current})
            if not lane.current.cancelled() and (error := lane.current.exception()) is not None:
                _log.error("turn failed", turn=frame.turn_id, exc_info=error)
        except asyncio.CancelledError:
            lane.current.cancel()
            await asyncio.wait({lane.current})
            raise
        finally:
            lane.current = None
