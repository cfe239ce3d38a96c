"""Hands timers to the agent when they are due, and does not let go of one before the agent has taken it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from homeagent_sdk.errors import HomeAgentError, Internal, Overloaded, TimedOut, Unavailable
from homeagent_sdk.logging import get_logger

from .store import Timer, TimerStore
from .times import next_due

LONGEST_SLEEP_S = 30.0
"""A machine that was suspended, or whose clock was set, is noticed after this at the latest."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_AT_ONCE = 8
_PASSING = (Unavailable, TimedOut, Overloaded, Internal)
_log = get_logger("timer")

Submit = Callable[[Timer, float], Awaitable[None]]
"""Gives a timer to the agent, so many seconds late; returns once it is accepted, or was before."""


class Scheduler:
    """Fires what is due.

    :param now: the wall clock, seconds since 1970
    """

    def __init__(self, store: TimerStore, submit: Submit, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._submit = submit
        self._now = now
        self._changed = asyncio.Event()
        self._retries: dict[int, tuple[float, float]] = {}
        """Timer → (not before, on the loop's clock; the pause after that)."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; what is overdue fires now."""
        self._task = asyncio.create_task(self._run(), name="timers")

    async def stop(self) -> None:
        """End; a firing under way is repeated at the next start, and the agent takes it once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """The timers have changed, or the clock has."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause_s = await self._fire_due()
            except Exception:
                # A full disk, for one: the timers are still there, and so must be the one who fires them.
                _log.exception("the timers cannot be read")
                pause_s = LONGEST_SLEEP_S
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                continue

    async def _fire_due(self) -> float:
        """Fire what is due and may be tried; return how long there is nothing to do, in seconds."""
        timers = await asyncio.to_thread(self._store.waiting)
        loop_now, now = asyncio.get_running_loop().time(), self._now()
        self._retries = {timer.id: self._retries[timer.id] for timer in timers if timer.id in self._retries}
        ripe = [t for t in timers if t.due <= now and self._not_before(t) <= loop_now][:_AT_ONCE]
        if ripe:
            await asyncio.gather(*(self._fire(timer) for timer in ripe))
            return 0.0
        waits = [max(t.due - now, self._not_before(t) - loop_now) for t in timers]
        return max(0.0, min([*waits, LONGEST_SLEEP_S]))

    def _not_before(self, timer: Timer) -> float:
        return self._retries.get(timer.id, (0.0, 0.0))[0]

    async def _fire(self, timer: Timer) -> None:
        try:
            await self._submit(timer, max(0.0, self._now() - timer.due))
        except _PASSING as error:
            pause_s = self._retries.get(timer.id, (0.0, _FIRST_PAUSE_S))[1]
            not_before = asyncio.get_running_loop().time() + pause_s
            self._retries[timer.id] = (not_before, min(pause_s * 2, _LONGEST_PAUSE_S))
            _log.warning("a timer waits for the agent", timer=timer.id, reason=str(error), pause_s=pause_s)
            return
        except HomeAgentError as error:
            _log.error("the agent refuses a timer", timer=timer.id, reason=str(error))
            await asyncio.to_thread(self._store.refused, timer, str(error))
            return
        self._retries.pop(timer.id, None)
        then = next_due(timer.due, timer.repeat, self._now()) if timer.repeat else None
        await asyncio.to_thread(self._store.fired, timer, then)


def describe(timer: Timer) -> dict[str, Any]:
    """Return the facts of a timer that do not depend on the time."""
    facts: dict[str, Any] = {"id": timer.id, "message": timer.message}
    if timer.repeat:
        facts["repeat"] = timer.repeat
    if timer.problem:
        facts["problem"] = timer.problem
    return facts
