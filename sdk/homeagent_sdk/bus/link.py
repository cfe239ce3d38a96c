"""A ZeroMQ socket in an asyncio loop, drained on its file descriptor.

``zmq.asyncio`` makes one Future per message and costs 116 µs a round trip; draining the socket whenever its descriptor
wakes costs 82 (measured; see ``docs/decisions/0003-fd-drain.md``). The descriptor is *edge-triggered*: each wake-up
must read ``ZMQ_EVENTS``, and each send must look again, or a message may wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from homeagent_sdk.bus.wire import Buffer
from homeagent_sdk.errors import Overloaded

_BURST = 256
"""Messages taken in one go before other work of the loop gets its turn."""


class Link:
    """One socket: :meth:`send` never blocks, ``on_message`` gets every message as a list of frames.

    What the socket cannot take at once waits in a queue of ``queue_limit`` messages; when that is full, :meth:`send`
    raises :class:`Overloaded`. The owner closes the link; the socket belongs to it.

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
        self._on_message: Callable[[list[bytes]], None] = on_message  # type: ignore[assignment]
        self._copy = copy
        self._queue: deque[Sequence[Buffer]] = deque()
        self._queue_limit = queue_limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_drain_scheduled = False

    def start(self) -> None:
        """Begin to deliver messages in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._drain)
        self.look_again()

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message, or keep it until the socket takes it.

        :raises Overloaded: the queue is full
        """
        if self._queue or not self._try_send(frames):
            if len(self._queue) >= self._queue_limit:
                raise Overloaded(
                    f"{len(self._queue)} messages wait for the bus already",
                    hint="the kernel is slow or gone; try later",
                )
            self._queue.append(frames)
        self.look_again()

    def forget_queue(self) -> int:
        """Drop what waits to be sent, and return how much that was: it was meant for a hub that is gone."""
        count = len(self._queue)
        self._queue.clear()
        return count

    def close(self, linger_ms: int = 0) -> None:
        """Stop delivery and close the socket; what it holds unsent may go out for ``linger_ms``."""
        if self._socket.closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.FD)
        self._queue.clear()
        self._socket.close(linger=linger_ms)

    def _events(self) -> int:
        return int(self._socket.getsockopt(zmq.EVENTS))

    def _try_send(self, frames: Sequence[Buffer]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT, copy=True)
        except zmq.Again:
            return False
        return True

    def look_again(self) -> None:
        """Notice what arrived unannounced; needed after anything but this link has used the socket."""
        if not self._is_drain_scheduled and self._loop is not None:
            if self._events() & (zmq.POLLIN | (zmq.POLLOUT if self._queue else 0)):
                self._is_drain_scheduled = True
                self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_drain_scheduled = False
        if self._socket.closed:
            return
        self._flush()
        for _ in range(_BURST):
            if not self._events() & zmq.POLLIN:
                return
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT, copy=self._copy)
            except zmq.Again:
                return
            self._on_message(frames)  # type: ignore[arg-type]
            if self._socket.closed:
                return
        self.look_again()

    def _flush(self) -> None:
        while self._queue and self._try_send(self._queue[0]):
            self._queue.popleft()
