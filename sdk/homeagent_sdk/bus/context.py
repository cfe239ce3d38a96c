"""Deadline and trace of the work that a task is doing, so that they travel with every call that it makes."""

from __future__ import annotations

import asyncio
import secrets
from contextvars import ContextVar

from homeagent_sdk.bus.wire import DEFAULT_DEADLINE_S
from homeagent_sdk.errors import TimedOut

current_deadline: ContextVar[float | None] = ContextVar("homeagent_deadline", default=None)
"""On the clock of the running loop; None where nobody waits."""
current_trace: ContextVar[str] = ContextVar("homeagent_trace", default="")


def new_trace() -> str:
    """Return a fresh trace id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def time_left(timeout_s: float | None, method: str) -> float:
    """Return the seconds that a new call may take: its own limit, and never more than what is left of the outer one.

    :raises TimedOut: nothing is left
    """
    limit = DEFAULT_DEADLINE_S if timeout_s is None else timeout_s
    outer = current_deadline.get()
    if outer is not None:
        limit = min(limit, outer - asyncio.get_running_loop().time())
    if limit <= 0:
        raise TimedOut(f"no time is left for {method}")
    return limit
