"""A ZeroMQ socket in an asyncio loop, drained on its file descriptor.

``zmq.asyncio`` makes one Future per message and costs 116 µs a round trip; draining the socket whenever its descriptor
wakes costs 82 (measured; see ``docs/decisions/0003-fd-drain.md``). The descriptor is *edge-triggered*: each wake-up
must read ``ZMQ_EVENTS``, and each send must look again, or a message may wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import structlog
import zmq

from homeagent_sdk.bus.framing import POLLIN, POLLOUT, readiness, receive_frames, send_frames
from homeagent_sdk.bus.wire import MAX_MESSAGE_BYTES, Buffer, size_of
from homeagent_sdk.errors import Overloaded

_BURST = 256
"""Messages taken in one go before other work of the loop gets its turn."""
_QUEUE_BYTES = 2 * MAX_MESSAGE_BYTES
_log = structlog.get_logger("bus")


class Link:
    """One socket: :meth:`send` never blocks, ``on_message`` gets every message as a list of frames.

    What the socket cannot take at once waits in a queue of ``queue_limit`` messages or 128 MiB; when that is full,
    :meth:`send` raises :class:`Overloaded`, and whoever can wait awaits :meth:`room` before it sends. The owner closes
    the link; the socket belongs to it.

    :param copy: hand over ``bytes`` (True), or ``zmq.Frame`` (False), which also carries the sender's address
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        on_message: Callable[[list[bytes]], None] | Callable[[list[zmq.Frame]], None],
        *,
        copy: bool = True,
        queue_limit: int = 1024,
    ) -> None:
        self._socket = socket
        self._on_message: Callable[[list[Any]], None] = on_message
        self._copy = copy
        self._queue: deque[Sequence[Buffer]] = deque()
        self._queue_bytes = 0
        self._queue_limit = queue_limit
        self._room: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_drain_scheduled = False
        self._is_draining = False

    def start(self) -> None:
        """Begin to deliver messages in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._drain)
        self.look_again()

    @property
    def is_crowded(self) -> bool:
        """Whether the queue is half full: who can wait should, so that room is left for those who cannot."""
        return len(self._queue) * 2 >= self._queue_limit or self._queue_bytes * 2 >= _QUEUE_BYTES

    async def room(self) -> None:
        """Wait until the queue is less than half full."""
        while self.is_crowded and not self._socket.closed:
            self._room = self._room or asyncio.Event()
            await self._room.wait()

    def send(self, frames: Sequence[Buffer], *, reserve: int = 0) -> None:
        """Send a message, or keep it until the socket takes it.

        :param reserve: how far beyond its limit the queue may grow, for what must not be refused
        :raises Overloaded: the queue is full
        """
        if self._queue or not self._try_send(frames):
            size = size_of(frames)
            if len(self._queue) >= self._queue_limit + reserve or self._queue_bytes + size > _QUEUE_BYTES:
                raise Overloaded(
                    f"{len(self._queue)} messages wait for the bus already",
                    hint="the kernel is slow or gone; try later",
                )
            self._queue.append(frames)
            self._queue_bytes += size
        self.look_again()

    def forget_queue(self) -> list[Sequence[Buffer]]:
        """Drop what waits to be sent, and return it: it was meant for a hub that is gone, and never left."""
        frames = list(self._queue)
        self._queue.clear()
        self._queue_bytes = 0
        self._tell_of_room()
        return frames

    def close(self, linger_ms: int = 0) -> None:
        """Stop delivery and close the socket; what it holds unsent may go out for ``linger_ms``."""
        if self._socket.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=linger_ms)
        self.forget_queue()

    def look_again(self) -> None:
        """Notice what arrived unannounced; needed after anything but this link has used the socket."""
        if self._is_drain_scheduled or self._is_draining or self._loop is None or self._socket.closed:
            return
        if readiness(self._socket) & (POLLIN | POLLOUT if self._queue else POLLIN):
            self._is_drain_scheduled = True
            self._loop.call_soon(self._drain)

    def _try_send(self, frames: Sequence[Buffer]) -> bool:
        try:
            send_frames(self._socket, frames)
        except zmq.Again:
            return False
        return True

    def _drain(self) -> None:
        self._is_drain_scheduled = False
        if self._socket.closed:
            return
        self._is_draining = True
        try:
            self._flush()
            is_empty = self._take_burst()
        finally:
            self._is_draining = False
        if not is_empty:
            self.look_again()

    def _take_burst(self) -> bool:
        """Hand over what has arrived; True when nothing more was there."""
        for _ in range(_BURST):
            if not readiness(self._socket) & POLLIN:
                return not self._queue
            try:
                frames = receive_frames(self._socket)
            except zmq.Again:
                return False
            try:
                self._on_message([frame.bytes for frame in frames] if self._copy else frames)
            except Exception:
                _log.exception("a message could not be handled; the next one is")
            if self._socket.closed:
                return True
        return False

    def _flush(self) -> None:
        while self._queue and self._try_send(self._queue[0]):
            self._queue_bytes -= size_of(self._queue.popleft())
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self._room is not None and (self._socket.closed or not self.is_crowded):
            self._room.set()
            self._room = None
