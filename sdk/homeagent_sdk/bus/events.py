"""A peer's ear on the event ring: one socket, any number of subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog
import zmq

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import Event, EventHandler
from homeagent_sdk.bus.link import Link
from homeagent_sdk.bus.subscriber import EventSubscription
from homeagent_sdk.errors import HomeAgentError

HEARTBEAT = "ring.heartbeat"
"""The topic on which the hub tells how far every other topic has come."""
_log = structlog.get_logger("bus")


class EventIntake:
    """Reads events and hands them to the subscriptions that want them.

    :param open_socket: makes and connects the SUB socket; called at the first subscription
    :param call: calls ``hub.*``; repeats by itself what a restart of the hub interrupted
    :param epoch: tells the epoch of the hub that welcomed this peer last
    """

    def __init__(
        self,
        open_socket: Callable[[], zmq.Socket[bytes]],
        call: Callable[[str, Any], Awaitable[Any]],
        epoch: Callable[[], str | None],
    ) -> None:
        self._open_socket = open_socket
        self._call = call
        self._epoch = epoch
        self._socket: zmq.Socket[bytes] | None = None
        self._link: Link | None = None
        self._subscriptions: list[EventSubscription] = []
        self.stale_events = 0
        """Events of another epoch than the hub's that this peer knows; replay brings back those that count."""

    async def subscribe(self, topics: Iterable[str], handler: EventHandler) -> EventSubscription:
        """Deliver every event of the topics from now on."""
        socket = self._listen()
        subscription = EventSubscription(topics, handler, self._replay, self._unsubscribe)
        self._subscriptions.append(subscription)
        try:
            for topic in (*subscription.topics, HEARTBEAT):
                socket.subscribe(topic.removesuffix("*"))
            answer = await self._positions(subscription)
            while answer["epoch"] != self._epoch():
                answer = await self._positions(subscription)
        except BaseException:
            await subscription.cancel()
            raise
        subscription.position(answer["epoch"], answer["positions"])
        return subscription

    def begin_epoch(self, epoch: str) -> None:
        """Let all subscriptions begin anew, if this is another ring than the last."""
        for subscription in self._subscriptions:
            subscription.restart(epoch)

    async def catch_up(self, epoch: str) -> None:
        """Learn after a welcome what the subscriptions have missed."""
        for subscription in list(self._subscriptions):
            try:
                answer = await self._positions(subscription)
            except HomeAgentError as error:
                _log.info("positions are not known yet; the next heartbeat tells them", reason=str(error))
                return
            if answer["epoch"] == epoch == self._epoch():
                for topic, number in answer["positions"].items():
                    subscription.take_position(topic, number)

    async def close(self, linger_ms: int) -> None:
        """Stop all deliveries and close the socket."""
        try:
            for subscription in list(self._subscriptions):
                await subscription.cancel()
        finally:
            if self._link is not None:
                self._link.close(linger_ms)
            self._link = self._socket = None

    def _listen(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._socket = self._open_socket()
            self._link = Link(self._socket, self._on_event)
            self._link.start()
        return self._socket

    async def _positions(self, subscription: EventSubscription) -> Any:
        return await self._call("hub.positions", {"topics": list(subscription.topics)})

    async def _replay(self, topic: str, after: int, up_to: int) -> dict[str, Any]:
        answer: dict[str, Any] = await self._call("hub.replay", {"topic": topic, "after": after, "up_to": up_to})
        return answer

    def _unsubscribe(self, subscription: EventSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            if self._socket is not None and not self._socket.closed:
                for topic in (*subscription.topics, HEARTBEAT):
                    self._socket.unsubscribe(topic.removesuffix("*"))

    def _on_event(self, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[1])
            epoch, when = str(header["e"]), float(header["s"])
            topic, number = header.get("m", ""), header.get("n", 0)
            if epoch != self._epoch():
                self.stale_events += 1
                return
            wanted = [s for s in self._subscriptions if topic == HEARTBEAT or s.matches(topic)]
            payload: Any = wire.decode_body(frames[2:]) if wanted else None
        except (wire.Malformed, IndexError, KeyError, TypeError, ValueError) as error:
            _log.error("an event cannot be read; replay is asked for it", reason=str(error))
            return
        for subscription in wanted:
            if topic == HEARTBEAT:
                for name, newest in payload.items():
                    subscription.take_position(name, newest)
            else:
                subscription.take(Event(topic, epoch, number, when, payload), len(frames[2]))
