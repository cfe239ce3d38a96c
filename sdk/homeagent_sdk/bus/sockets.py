"""Where the hub's sockets are, and how a peer sets up its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from homeagent_sdk.bus import wire

HIGH_WATER_MARK: Final = 256
"""Messages that a socket holds in each direction before the sender has to keep them itself."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the hub's three sockets are."""

    control: str
    urgent: str
    events: str

    @classmethod
    def in_directory(cls, run_dir: Path) -> Endpoints:
        """Return the endpoints of the Unix sockets in a run directory."""
        return cls(*(f"ipc://{run_dir / name}.sock" for name in ("control", "urgent", "events")))


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    """Make a socket of a peer: it sends nothing to a hub that is not there, and comes back to it soon."""
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    return socket


def watch_link(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket that tells when another one is connected, or loses its other end."""
    monitor: zmq.Socket[bytes] = socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
    )
    return monitor
