"""Timers: the agent is told, in the conversation where a timer was set, when it is due."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid, NotFound, Overloaded
from homeagent_sdk.plugin import Plugin, ToolContext, format_duration, parse_duration

from .scheduler import Scheduler, describe
from .store import Timer, TimerStore
from .times import check_repeat, next_due, parse_moment, show

LATE_S = 60.0
"""From here on a timer says that it comes late."""

_LONGEST_MESSAGE = 2000

plugin = Plugin()


class Running:
    """What exists while the plugin runs."""

    store: TimerStore
    scheduler: Scheduler


running = Running()


@plugin.tool(idempotent=True)
async def timer_set(
    message: str,
    context: ToolContext,
    duration: str | None = None,
    at: str | None = None,
    repeat: str | None = None,
) -> dict[str, Any]:
    """Set a timer or reminder. When it is due you get the message in this conversation and can act on it.

    Give either duration or at.

    :param message: what to remember or to do when it is due
    :param duration: how long from now, such as 10m, 1h30m or 2d
    :param at: when, as local time: 18:00 (the next one), 2026-12-24T18:00, or with a zone 2026-12-24T18:00+01:00
    :param repeat: daily, weekly, or how long between two times, such as 1h; leave it out for once
    """
    if not message.strip() or len(message) > _LONGEST_MESSAGE:
        raise Invalid(f"message must have 1 to {_LONGEST_MESSAGE} characters", field="message")
    now = time.time()
    repetition = check_repeat(repeat) if repeat and repeat.strip() else ""
    due = _due(duration, at, repetition, now)
    timer = Timer(0, due, repetition, message, context.channel, context.conversation, context.principal)
    origin = f"{context.turn_id}/{context.call_id}"
    most = int(plugin.settings["max_timers"])
    stored = await asyncio.to_thread(running.store.add, timer, origin, most)
    if stored is None:
        raise Overloaded(f"there are {most} timers already", hint="cancel one with timer_cancel first")
    running.scheduler.wake()
    return _show(stored, now)


@plugin.tool(idempotent=True, parallel_safe=True)
async def timer_list(context: ToolContext) -> dict[str, Any]:
    """List the timers of the person you speak with, the next one first."""
    now = time.time()
    timers = await asyncio.to_thread(running.store.of, context.principal)
    return {"now": show(now), "timers": [_show(timer, now) for timer in timers]}


@plugin.tool(idempotent=True)
async def timer_cancel(id: int, context: ToolContext) -> str:
    """Cancel a timer.

    :param id: its id, as timer_set and timer_list tell
    """
    timer = await asyncio.to_thread(running.store.remove, id, context.principal)
    if timer is None:
        raise NotFound(f"there is no timer {id}", field="id", hint="timer_list tells which there are")
    running.scheduler.wake()
    return f"cancelled: {timer.message}"


@plugin.on_start
async def start() -> None:
    """Open the timers; those that are overdue fire now."""
    running.store = await asyncio.to_thread(TimerStore, plugin.data_dir / "timers.db")
    running.scheduler = Scheduler(running.store, _submit)
    running.scheduler.start()


@plugin.on_stop
async def stop() -> None:
    """Close the timers."""
    await running.scheduler.stop()
    await asyncio.to_thread(running.store.close)


async def _submit(timer: Timer, late_s: float) -> None:
    """Give a due timer to the agent, in the lane that it was set from; safe to repeat."""
    key = "timer.due_late" if late_s >= LATE_S else "timer.due"
    await plugin.submit(
        channel=timer.channel,
        conversation=timer.conversation,
        text=text(key, id=timer.id, message=timer.message, due=show(timer.due), late=format_duration(late_s)),
        principal=timer.principal,
        delivery_id=timer.delivery_id,
        kind="self",
        level="L3",
    )


def _due(duration: str | None, at: str | None, repetition: str, now: float) -> float:
    duration, at = (value.strip() if value else "" for value in (duration, at))
    if duration and at:
        raise Invalid("both duration and at are given", field="at", hint="give one of them")
    if at:
        due = parse_moment(at, now)
        if due <= now and repetition:
            due = next_due(due, repetition, now)
        if due <= now:
            raise Invalid(f"{at} is over", field="at", hint=f"now it is {show(now)}")
    elif duration:
        due = now + parse_duration(duration, field="duration")
    elif repetition:
        due = next_due(now, repetition, now)
    else:
        raise Invalid("duration and at are missing", field="duration", hint="give one of them, such as 10m")
    limit_s = parse_duration(plugin.settings["max_duration"])
    if due - now > limit_s:
        hint = f"at most {format_duration(limit_s)} ahead; plugin.timer.max_duration sets the limit"
        raise Invalid("the timer is too far ahead", field="at" if at else "duration", hint=hint)
    return due


def _show(timer: Timer, now: float) -> dict[str, Any]:
    return {**describe(timer), "due": show(timer.due), "in": format_duration(timer.due - now)}
