"""The peers that the hub knows, and what waits to be sent to each of them."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from homeagent_sdk.bus import wire

OUTBOX_MESSAGES: Final = 2048
OUTBOX_BYTES: Final = 32 * 1024 * 1024
"""What may wait for a peer that is slow; further calls and casts to it are refused."""
OUTBOX_ANSWER_MESSAGES: Final = 8192
OUTBOX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The same with answers, which are not refused, since it asked for them: a peer that lets more wait is dropped."""
MAX_EARLY_CANCELS: Final = 256
MAX_SEEN: Final = 4096
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
    last_heard: float
    """On the clock of the hub's loop."""
    is_pid_certain: bool = False
    """Whether the operating system told the pid, and not the peer itself."""
    urgent_identity: bytes | None = None
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    since: float = field(default_factory=time.time)
    state: str = RUNNING
    missed_pings: int = 0
    outbox: deque[Sequence[Any]] = field(default_factory=deque)
    outbox_bytes: int = 0
    _early_cancels: OrderedDict[int, None] = field(default_factory=OrderedDict)

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

    def keep(self, frames: Sequence[Any], *, is_answer: bool = False) -> bool:
        """Queue a message that its socket did not take; False when the queue is full.

        An empty queue takes any message, however large.
        """
        size = wire.size_of(frames)
        most_messages = OUTBOX_ANSWER_MESSAGES if is_answer else OUTBOX_MESSAGES
        most_bytes = OUTBOX_ANSWER_BYTES if is_answer else OUTBOX_BYTES
        if self.outbox and (len(self.outbox) >= most_messages or self.outbox_bytes + size > most_bytes):
            return False
        self.outbox.append(frames)
        self.outbox_bytes += size
        return True

    def take_from_outbox(self) -> None:
        """Forget the oldest queued message: it is sent."""
        self.outbox_bytes -= wire.size_of(self.outbox.popleft())

    def note_early_cancel(self, call_id: int) -> None:
        """Remember a cancel that overtook its call; beyond 256 the oldest is forgotten and its call runs on."""
        self._early_cancels[call_id] = None
        if len(self._early_cancels) > MAX_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)

    def was_cancelled_early(self, call_id: int) -> bool:
        """Tell, once, whether a call was cancelled before it came."""
        return self._early_cancels.pop(call_id, 0) is None

    def close(self) -> None:
        """Give back what the hub holds for this peer."""
        self.outbox.clear()
        self.outbox_bytes = 0
        self._early_cancels.clear()


class PeerTable:
    """The peers by name and by the identities that ZeroMQ gave their connections."""

    def __init__(self) -> None:
        self._by_name: dict[str, RemotePeer] = {}
        self._by_control: dict[bytes, RemotePeer] = {}
        self._by_urgent: dict[bytes, RemotePeer] = {}
        self._by_session: dict[str, RemotePeer] = {}
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._last_number = 0

    def __iter__(self) -> Iterator[RemotePeer]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, peer: object) -> bool:
        return isinstance(peer, RemotePeer) and self._by_name.get(peer.name) is peer

    def add(self, name: str, tier: str, generation: int, pid: int, identity: bytes, now: float) -> RemotePeer:
        """Add a peer that was admitted."""
        self._last_number += 1
        peer = RemotePeer(self._last_number, name, tier, generation, pid, identity, now)
        self._by_name[name] = peer
        self._by_control[identity] = peer
        self._by_session[peer.session] = peer
        if tier != "operator":
            self._note_seen(name, generation)
        return peer

    def newest_generation(self, name: str) -> int | None:
        """Return the newest generation of a name that took part in this epoch; None if it never did.

        Of more than 4,096 names those are forgotten that have been away longest.
        """
        return self._seen.get(name)

    def _note_seen(self, name: str, generation: int) -> None:
        self._seen[name] = max(generation, self._seen.pop(name, 0))
        if len(self._seen) > MAX_SEEN:
            oldest = next((name for name in self._seen if name not in self._by_name), None)
            if oldest is not None:
                del self._seen[oldest]

    def remove(self, peer: RemotePeer) -> None:
        """Remove a peer."""
        if self._by_name.get(peer.name) is peer:
            del self._by_name[peer.name]
        if self._by_control.get(peer.control_identity) is peer:
            del self._by_control[peer.control_identity]
        self._by_session.pop(peer.session, None)
        if peer.urgent_identity is not None and self._by_urgent.get(peer.urgent_identity) is peer:
            del self._by_urgent[peer.urgent_identity]
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
        if peer is None:
            return None
        former = self._by_urgent.get(identity)
        if former is not None:
            former.urgent_identity = None
        if peer.urgent_identity is not None:
            self._by_urgent.pop(peer.urgent_identity, None)
        peer.urgent_identity = identity
        self._by_urgent[identity] = peer
        return peer
