"""A bus in memory: the same contract as the real one, without sockets, for tests that run in milliseconds."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import msgpack

from homeagent_sdk.bus.abc import CallContext, Event, EventHandler, Handler, Origin, StreamHandler
from homeagent_sdk.bus.wire import DEFAULT_WINDOW
from homeagent_sdk.errors import HomeAgentError, Internal, NotFound, TimedOut


def _over_the_wire(value: Any) -> Any:
    """Return ``value`` as the other side would see it, so that a test notices what msgpack cannot carry."""
    return msgpack.unpackb(msgpack.packb(value), strict_map_key=False)


class LocalBus:
    """The hub of the bus in memory; :meth:`peer` makes its peers.

    ``events`` keeps all that was published, in order, for tests to look at.
    """

    def __init__(self) -> None:
        self.epoch = "local"
        self.peers: dict[str, LocalPeer] = {}
        self.events: list[Event] = []
        self._sequences: defaultdict[str, int] = defaultdict(int)
        self._subscriptions: list[_LocalSubscription] = []

    def peer(self, name: str, tier: str = "service") -> LocalPeer:
        """Make a peer of this bus; it takes part from the moment it exists."""
        peer = LocalPeer(self, name, tier)
        self.peers[name] = peer
        return peer

    def find(self, method: str) -> LocalPeer:
        """Return the peer that a method is routed to, or raise :class:`NotFound`."""
        peer = self.peers.get(method.partition(".")[0])
        if peer is None:
            raise NotFound(f"no peer serves {method}")
        return peer

    async def emit(self, topic: str, payload: Any) -> None:
        """Put an event on the ring and deliver it."""
        self._sequences[topic] += 1
        event = Event(topic, self.epoch, self._sequences[topic], time.time(), _over_the_wire(payload))
        self.events.append(event)
        for subscription in list(self._subscriptions):
            if subscription.matches(topic):
                await subscription.handler(event)


class _LocalSubscription:
    def __init__(self, bus: LocalBus, topics: Iterable[str], handler: EventHandler) -> None:
        self._bus = bus
        self._topics = list(topics)
        self.handler = handler

    def matches(self, topic: str) -> bool:
        return any(topic == t or (t.endswith("*") and topic.startswith(t[:-1])) for t in self._topics)

    async def cancel(self) -> None:
        if self in self._bus._subscriptions:
            self._bus._subscriptions.remove(self)


class _LocalStream:
    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with aclosing(self._items) as items:  # type: ignore[type-var]
            async for item in items:
                yield _over_the_wire(item)

    async def aclose(self) -> None:
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class LocalPeer:
    """A peer of a :class:`LocalBus`; satisfies :class:`homeagent_sdk.bus.abc.BusPeer`."""

    def __init__(self, bus: LocalBus, name: str, tier: str) -> None:
        self._bus = bus
        self._name = name
        self._tier = tier
        self._handlers: dict[str, Handler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._welcomes: list[Callable[[], Awaitable[None]]] = []

    @property
    def name(self) -> str:
        """The peer's name."""
        return self._name

    @property
    def epoch(self) -> str | None:
        """The epoch of the bus."""
        return self._bus.epoch

    async def start(self, timeout_s: float = 30.0) -> None:
        """Run the welcome callbacks."""
        for callback in self._welcomes:
            await callback()

    async def stop(self) -> None:
        """Leave the bus."""
        self._bus.peers.pop(self._name, None)

    def serve(self, method: str, handler: Handler) -> None:
        """Register a handler."""
        self._handlers[method] = handler

    def serve_stream(self, method: str, handler: StreamHandler) -> None:
        """Register a streaming handler."""
        self._streams[method] = handler

    def _context(self, method: str, timeout_s: float | None) -> CallContext:
        deadline = asyncio.get_running_loop().time() + (timeout_s or 60.0)
        return CallContext(method, Origin(self._name, self._tier), "local", deadline)

    async def call(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, idempotent: bool = False
    ) -> Any:
        """Call a handler of another peer, or of this one."""
        handler = self._bus.find(method)._handlers.get(method)
        if handler is None:
            raise NotFound(f"nobody serves {method}")
        try:
            async with asyncio.timeout(timeout_s or 60.0):
                return _over_the_wire(await handler(_over_the_wire(body), self._context(method, timeout_s)))
        except TimeoutError as error:
            raise TimedOut(f"{method} did not answer in {timeout_s or 60.0} s") from error
        except HomeAgentError:
            raise
        except Exception as error:
            raise Internal(f"{method} failed: {error!r}") from error

    def stream(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, window: int = DEFAULT_WINDOW
    ) -> _LocalStream:
        """Call a streaming handler."""
        handler = self._bus.find(method)._streams.get(method)
        if handler is None:
            raise NotFound(f"nobody serves the stream {method}")
        return _LocalStream(handler(_over_the_wire(body), self._context(method, timeout_s)))

    async def cast(self, method: str, body: Any = None) -> None:
        """Call a handler and forget the answer."""
        handler = self._bus.find(method)._handlers.get(method)
        if handler is not None:
            await handler(_over_the_wire(body), self._context(method, None))

    async def publish(self, topic: str, payload: Any = None) -> None:
        """Put an event on the ring."""
        await self._bus.emit(topic, payload)

    async def subscribe(self, topics: Iterable[str], handler: EventHandler) -> _LocalSubscription:
        """Deliver the events of the topics to a handler."""
        subscription = _LocalSubscription(self._bus, topics, handler)
        self._bus._subscriptions.append(subscription)
        return subscription

    def on_welcome(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Run a callback at :meth:`start`."""
        self._welcomes.append(callback)
