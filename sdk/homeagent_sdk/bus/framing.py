"""Messages of several frames to and from a socket, below pyzmq's conveniences.

There every flag becomes an enum member again and again, a tenth of what a message costs; and each frame is followed by
the question whether there is another, which the frame itself could have answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import zmq
import zmq.backend

POLLIN: Final = int(zmq.POLLIN)
POLLOUT: Final = int(zmq.POLLOUT)
_EVENTS: Final = int(zmq.EVENTS)
_LAST: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_get, _send, _receive = zmq.backend.Socket.get, zmq.backend.Socket.send, zmq.backend.Socket.recv


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any]) -> None:
    """Send a message without waiting; a ``zmq.Frame`` is passed on as it is, anything else copied.

    :raises zmq.Again: the socket does not take it now; nothing of it was sent
    :raises zmq.ZMQError: it cannot be sent at all
    """
    last = len(frames) - 1
    for index in range(last):
        _send(socket, frames[index], _MORE)
    _send(socket, frames[last], _LAST)


def receive_frames(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Receive a message without waiting.

    :raises zmq.Again: there is none
    """
    frame = _receive(socket, _LAST, False)
    frames = [frame]
    while frame.more:
        frame = _receive(socket, _LAST, False)
        frames.append(frame)
    return frames


def readiness(socket: zmq.Socket[bytes]) -> int:
    """Return ``ZMQ_EVENTS``; reading it also arms the socket's descriptor again."""
    return _get(socket, _EVENTS)  # type: ignore[return-value]
