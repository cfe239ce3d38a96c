"""A peer's two sockets to the hub, control and urgent: opening, sending, and what happens to what cannot be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.link import Link
from homeagent_sdk.bus.sockets import Endpoints, open_socket, watch_link
from homeagent_sdk.errors import Overloaded, Unavailable

RESERVE = 1024
"""Room in the queue that calls and casts leave to answers, credit and the handshake, which cannot wait."""
_log = structlog.get_logger("bus")


class Uplink:
    """Connects to the hub and tells, by ``on_link``, when it is connected and when it is not any more."""

    def __init__(
        self,
        endpoints: Endpoints,
        on_control: Callable[[list[bytes]], None],
        on_urgent: Callable[[list[bytes]], None],
        on_link: Callable[[bool], None],
    ) -> None:
        self._endpoints = endpoints
        self._on_control = on_control
        self._on_urgent = on_urgent
        self._on_link = on_link
        self._control: Link | None = None
        self._urgent: Link | None = None
        self._monitor: Link | None = None
        self._dropped_when_logged = 0
        self.dropped_messages = 0
        """Answers, casts and cancels that could not be sent, told in the log."""

    @property
    def is_open(self) -> bool:
        """Whether there are sockets at the moment."""
        return self._control is not None

    @property
    def is_crowded(self) -> bool:
        """Whether so much waits to be sent that who can wait should."""
        return self._control is not None and self._control.is_crowded

    async def room(self) -> None:
        """Wait until less waits to be sent."""
        if self._control is not None:
            await self._control.room()

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Connect both sockets."""
        control, urgent = open_socket(context, zmq.DEALER), open_socket(context, zmq.DEALER)
        self._control = Link(control, self._on_control)
        self._urgent = Link(urgent, self._on_urgent)
        if self._endpoints.control.startswith("inproc:"):
            self._on_link(True)
        else:
            self._monitor = Link(watch_link(control), self._on_monitor)
            self._monitor.start()
        self._control.start()
        self._urgent.start()
        control.connect(self._endpoints.control)
        urgent.connect(self._endpoints.urgent)

    def close(self, linger_ms: int) -> None:
        """Close both sockets; what they hold unsent may go out for ``linger_ms``."""
        for link in (self._control, self._urgent, self._monitor):
            if link is not None:
                link.close(linger_ms)
        self._control = self._urgent = self._monitor = None

    def send(self, header: bytes, frames: list[bytes], *, reserve: int = 0) -> None:
        """Send over the control socket.

        :raises Overloaded: too much waits to be sent
        :raises Unavailable: there is no socket any more
        """
        if self._control is None:
            raise Unavailable("this peer is stopped", detail={"bus": True, "sent": False})
        self._control.send([header, *frames], reserve=reserve)

    def send_handshake(self, kind: str, body: Any) -> None:
        """Send a message of the handshake."""
        frames = [] if body is None else wire.encode_body(body)
        try:
            self.send(wire.encode_header(kind), frames, reserve=RESERVE)
        except Overloaded as error:
            self.drop(kind, str(error))

    def send_urgent(self, kind: str, call_id: int, body: Any = None) -> None:
        """Send over the urgent socket."""
        if self._urgent is None:
            return
        frames = [] if body is None else wire.encode_body(body)
        try:
            self._urgent.send([wire.encode_header(kind, call_id=call_id), *frames])
        except Overloaded as error:
            self.drop(kind, str(error))

    def forget_queues(self, reason: str) -> list[int]:
        """Drop what was meant for a hub that is gone; return the ids of the calls that never left."""
        if self._control is None or self._urgent is None:
            return []
        self._urgent.forget_queue()
        headers = [wire.decode_header(frames[0]) for frames in self._control.forget_queue()]
        casts = sum(header["k"] == wire.CAST for header in headers)
        if casts:
            self.drop("casts", reason, casts)
        return [header["i"] for header in headers if header["k"] == wire.CALL]

    def drop(self, what: str, reason: str, count: int = 1) -> None:
        """Count and log what is lost; the more it is, the fewer lines."""
        self.dropped_messages += count
        if self.dropped_messages - self._dropped_when_logged >= self._dropped_when_logged // 10:
            self._dropped_when_logged = self.dropped_messages
            _log.warning("dropped", what=what, reason=reason, total=self.dropped_messages)

    def _on_monitor(self, frames: list[bytes]) -> None:
        kind = parse_monitor_message(frames)["event"]
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._on_link(True)
        elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            self._on_link(False)
