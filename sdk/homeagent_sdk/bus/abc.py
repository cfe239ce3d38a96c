"""The bus as a program sees it: what a peer can do, and what its handlers are given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from homeagent_sdk.bus.wire import DEFAULT_WINDOW


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sent a message. Written by the hub alone, so it can be relied on.

    ``tier`` is one of kernel, service, operator, builtin, external; ``generation`` counts the starts of a plugin.
    """

    name: str
    tier: str
    generation: int = 0


@dataclass(slots=True)
class CallContext:
    """What a handler knows of the call that it answers."""

    method: str
    origin: Origin
    trace: str
    deadline: float
    """When the caller stops waiting, on the clock of ``asyncio.get_running_loop().time()``."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the ring. ``sequence`` counts within its topic and epoch, from 1."""

    topic: str
    epoch: str
    sequence: int
    time: float
    """Wall clock, seconds since 1970."""
    payload: Any = field(default=None)


Handler = Callable[[Any, CallContext], Awaitable[Any]]
StreamHandler = Callable[[Any, CallContext], AsyncIterator[Any]]
EventHandler = Callable[[Event], Awaitable[None]]


class Stream(Protocol):
    """Answers of a streaming call, in order. Close it (or leave its ``async with``) to cancel the rest."""

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the items; raises the typed error that ended the stream, if one did."""

    async def aclose(self) -> None:
        """Stop listening; the callee's task is cancelled."""

    async def __aenter__(self) -> Self:
        """Return the stream itself."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""


class Subscription(Protocol):
    """A running subscription to the event ring."""

    async def cancel(self) -> None:
        """Stop delivery; safe to call twice."""


class BusPeer(Protocol):
    """A program's place on the bus. :class:`homeagent_sdk.bus.Peer` is the real one; the test kit has one in memory."""

    @property
    def name(self) -> str:
        """The name under which the others reach this peer: methods ``<name>.<verb>`` are routed to it."""

    @property
    def epoch(self) -> str | None:
        """The epoch of the hub that welcomed this peer last, or None before the first welcome."""

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connect and be welcomed.

        :raises Denied: the hub refused this peer
        :raises TimedOut: no hub answered in time
        """

    async def stop(self) -> None:
        """Say bye and close; calls in flight end with ``cancelled``."""

    def serve(self, method: str, handler: Handler) -> None:
        """Answer calls and casts of ``method`` (its full name, e.g. ``memory.recall``) with ``handler``.

        The handler's return value is the reply. A typed error that it raises is sent as it is; any other becomes
        ``internal`` for the caller and a traceback in this process' log. When the caller cancels or the deadline
        passes, the handler's task is cancelled.
        """

    def serve_stream(self, method: str, handler: StreamHandler) -> None:
        """Answer streaming calls of ``method`` with an async generator; it is paused while the reader is slow."""

    async def call(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, idempotent: bool = False
    ) -> Any:
        """Call ``method`` and return its reply.

        :param timeout_s: default 60; never more than is left of the call being handled, since deadlines travel
        :param idempotent: repeat the call if its peer died while it was under way
        :raises HomeAgentError: the typed error that the callee or the hub answered
        """

    def stream(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, window: int = DEFAULT_WINDOW
    ) -> Stream:
        """Call a streaming method; ``window`` items at most wait unread on the way."""

    async def cast(self, method: str, body: Any = None) -> None:
        """Send without asking for an answer."""

    async def publish(self, topic: str, payload: Any = None) -> None:
        """Put an event on the ring."""

    async def subscribe(self, topics: Iterable[str], handler: EventHandler) -> Subscription:
        """Deliver every event of the topics, once and in order.

        A topic ending in ``*`` matches by prefix. Where events are lost for good the handler gets one event of topic
        ``ring.lost`` with ``{"topic", "count"}``; after a restart of the kernel, one of topic ``ring.epoch``.
        """

    def on_welcome(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Run ``callback`` after each welcome: the first, and again whenever the kernel was restarted.

        If the kernel is lost while it runs, it is cancelled: the next welcome begins it anew.
        """
