"""Deadline and trace of the work that a task is doing, so that they travel with every call that it makes."""

from __future__ import annotations

import asyncio
import contextvars
import secrets
from contextvars import ContextVar

from homeagent_sdk.bus.wire import DEFAULT_DEADLINE_S
from homeagent_sdk.errors import TimedOut


class CallScope:
    """The deadline of a call that is being answered; it holds until the answer is out.

    Tasks that a handler has started and left behind are still in its context, but nobody waits for them any more: with
    the answer the deadline is lifted, for them too.
    """

    __slots__ = ("deadline",)

    def __init__(self, deadline: float) -> None:
        self.deadline: float | None = deadline
        """On the clock of the running loop; None once the call is answered."""

    def lift(self) -> None:
        """Bind nobody any longer."""
        self.deadline = None


current_scope: ContextVar[CallScope | None] = ContextVar("homeagent_scope", default=None)
current_trace: ContextVar[str] = ContextVar("homeagent_trace", default="")


def new_trace() -> str:
    """Return a fresh trace id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def detached() -> contextvars.Context:
    """Return a copy of the current context without deadline and trace, for a task that outlives the call at hand."""
    context = contextvars.copy_context()
    context.run(current_scope.set, None)
    context.run(current_trace.set, "")
    return context


def time_left(timeout_s: float | None, method: str) -> float:
    """Return the seconds that a new call may take: its own limit, and never more than what is left of the outer one.

    :raises TimedOut: nothing is left
    """
    limit = DEFAULT_DEADLINE_S if timeout_s is None else timeout_s
    scope = current_scope.get()
    if scope is not None and scope.deadline is not None:
        limit = min(limit, scope.deadline - asyncio.get_running_loop().time())
    if limit <= 0:
        raise TimedOut(f"no time is left for {method}")
    return limit
