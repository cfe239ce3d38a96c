"""The peers that the hub knows, and what waits to be sent to each of them."""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

OUTBOX_MESSAGES: Final = 2048
OUTBOX_BYTES: Final = 32 * 1024 * 1024
RUNNING, SUSPECT = "running", "suspect"


@dataclass(eq=False, slots=True)
class RemotePeer:
    """One peer. ``number`` is unique for the life of the hub; names and generations come back, numbers never."""

    number: int
    name: str
    tier: str
    generation: int
    pid: int
    control_identity: bytes
    urgent_identity: bytes | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    since: float = field(default_factory=time.time)
    state: str = RUNNING
    last_heard: float = field(default_factory=time.monotonic)
    missed_pings: int = 0
    pid_descriptor: int | None = None
    outbox: deque[Sequence[Any]] = field(default_factory=deque)
    outbox_bytes: int = 0

    @property
    def origin(self) -> dict[str, Any]:
        """What the hub writes into the header of what this peer sends."""
        return {"name": self.name, "tier": self.tier, "generation": self.generation}

    def describe(self) -> dict[str, Any]:
        """Return this peer as ``hub.peers`` lists it."""
        return {
            "name": self.name,
            "tier": self.tier,
            "generation": self.generation,
            "pid": self.pid,
            "state": self.state,
            "since": self.since,
            "waiting": len(self.outbox),
        }

    def keep(self, frames: Sequence[Any]) -> bool:
        """Queue a message that its socket did not take; False when the queue is full."""
        size = sum(len(frame) for frame in frames)
        if len(self.outbox) >= OUTBOX_MESSAGES or self.outbox_bytes + size > OUTBOX_BYTES:
            return False
        self.outbox.append(frames)
        self.outbox_bytes += size
        return True

    def take_from_outbox(self) -> None:
        """Forget the oldest queued message: it is sent."""
        self.outbox_bytes -= sum(len(frame) for frame in self.outbox.popleft())

    def close(self) -> None:
        """Give back what the hub holds for this peer."""
        self.outbox.clear()
        self.outbox_bytes = 0
        if self.pid_descriptor is not None:
            os.close(self.pid_descriptor)
            self.pid_descriptor = None


class PeerTable:
    """The peers by name and by the identities that ZeroMQ gave their connections."""

    def __init__(self) -> None:
        self._by_name: dict[str, RemotePeer] = {}
        self._by_control: dict[bytes, RemotePeer] = {}
        self._by_urgent: dict[bytes, RemotePeer] = {}
        self._by_session: dict[str, RemotePeer] = {}
        self._last_number = 0
        self.seen: dict[str, int] = {}
        """The newest generation of every name that ever took part in this epoch; at most one entry per plugin."""

    def __iter__(self) -> Iterator[RemotePeer]:
        return iter(list(self._by_name.values()))

    def __contains__(self, peer: object) -> bool:
        return isinstance(peer, RemotePeer) and self._by_name.get(peer.name) is peer

    def add(self, name: str, tier: str, generation: int, pid: int, identity: bytes) -> RemotePeer:
        """Add a peer that was admitted."""
        self._last_number += 1
        peer = RemotePeer(self._last_number, name, tier, generation, pid, identity)
        self._by_name[name] = peer
        self._by_control[identity] = peer
        self._by_session[peer.session] = peer
        if tier != "operator":
            self.seen[name] = max(generation, self.seen.get(name, 0))
        return peer

    def remove(self, peer: RemotePeer) -> None:
        """Remove a peer."""
        if self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        self._by_control.pop(peer.control_identity, None)
        self._by_session.pop(peer.session, None)
        if peer.urgent_identity is not None:
            self._by_urgent.pop(peer.urgent_identity, None)
        peer.close()

    def named(self, name: str) -> RemotePeer | None:
        """Return the peer of a name."""
        return self._by_name.get(name)

    def at_control(self, identity: bytes) -> RemotePeer | None:
        """Return the peer behind a connection of the control socket."""
        return self._by_control.get(identity)

    def at_urgent(self, identity: bytes) -> RemotePeer | None:
        """Return the peer behind a connection of the urgent socket."""
        return self._by_urgent.get(identity)

    def bind_urgent(self, session: Any, identity: bytes) -> RemotePeer | None:
        """Join a connection of the urgent socket to the peer that was given ``session``."""
        peer = self._by_session.get(session) if isinstance(session, str) else None
        if peer is not None:
            if peer.urgent_identity is not None:
                self._by_urgent.pop(peer.urgent_identity, None)
            peer.urgent_identity = identity
            self._by_urgent[identity] = peer
        return peer
