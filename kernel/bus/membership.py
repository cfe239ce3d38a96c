"""Who is on the bus: joining, leaving, and the pings that tell who still lives."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import HomeAgentError, Invalid
from kernel.bus.admission import Admission, Admitted, refuse_older
from kernel.bus.complaints import Complaints
from kernel.bus.outlets import GONE, Frames, Outlets
from kernel.bus.peers import RUNNING, SUSPECT, PeerTable, RemotePeer

MISSES_TO_SUSPECT: Final = 3
GONE_AFTER_S: Final = 60.0
MAX_HELLO_BYTES: Final = 4096
_MAX_HELLO_ITEMS: Final = 64
_log = structlog.get_logger("hub")


class Membership:
    """Admits peers and sees them off.

    :param release: ends the calls of a peer that has left: ``release(peer, reason)``
    :param welcome: called with a peer once it is admitted, to pass on what waited for it
    :param on_change: called with (peer, what), what being up, running, suspect or gone
    """

    def __init__(
        self,
        epoch: str,
        admission: Admission,
        peers: PeerTable,
        outlets: Outlets,
        counters: Counter[str],
        complaints: Complaints,
        clock: Callable[[], float],
        release: Callable[[RemotePeer, str], None],
        welcome: Callable[[RemotePeer], None],
        on_change: Callable[[RemotePeer, str], None],
    ) -> None:
        self._epoch = epoch
        self._admission = admission
        self._peers = peers
        self._outlets = outlets
        self._counters = counters
        self._complaints = complaints
        self._clock = clock
        self._release = release
        self._welcome = welcome
        self._on_change = on_change
        self._leaving: deque[tuple[RemotePeer, str]] = deque()
        self._is_seeing_off = False
        self._ping_number = 0

    def hello(self, identity: bytes, frames: Frames, pid: int) -> None:
        """Handle a hello of the control socket.

        :param pid: the sender's process id as the operating system tells it; 0 where it does not
        """
        try:
            body = read_small(frames, MAX_HELLO_BYTES, _MAX_HELLO_ITEMS)
            answer = self._admission.hello(identity, body, pid)
            if isinstance(answer, Admitted):
                known = self._peers.newest_generation(answer.name)
                refuse_older(answer.name, answer.generation, known or 0)
        except wire.Malformed as error:
            self._refuse(identity, Invalid(f"the hello cannot be read: {error}"))
        except HomeAgentError as error:
            self._refuse(identity, error)
        else:
            if isinstance(answer, bytes):
                self._outlets.tell(identity, wire.CHALLENGE, {"nonce": answer, "epoch": self._epoch})
            else:
                self._admit(identity, answer, pid, _claimed_pid(body))

    def _refuse(self, identity: bytes, error: HomeAgentError) -> None:
        self._counters["refused_hellos"] += 1
        self._complaints.warn("hello refused", reason=error.message, total=self._counters["refused_hellos"])
        self._outlets.tell(identity, wire.ERROR, error.to_wire())

    def _admit(self, identity: bytes, admitted: Admitted, pid: int, claimed_pid: int) -> None:
        for old in (self._peers.named(admitted.name), self._peers.at_control(identity)):
            if old is not None and old in self._peers:
                if old.control_identity != identity:
                    reason = f"another process has joined as {old.name}"
                    self._outlets.tell(old.control_identity, wire.BYE, {"reason": reason, "replaced": True})
                self.remove(old, "replaced by a newer connection")
        peer = self._peers.add(
            admitted.name, admitted.tier, admitted.generation, pid or claimed_pid, identity, self._clock()
        )
        peer.is_pid_certain = pid > 0
        _log.info("peer joined", peer=peer.name, tier=peer.tier, generation=peer.generation, pid=peer.pid)
        welcome = {"epoch": self._epoch, "name": peer.name, "tier": peer.tier, "session": peer.session}
        self._outlets.tell(identity, wire.WELCOME, welcome)
        self._on_change(peer, "up")
        self._welcome(peer)

    def bind_urgent(self, identity: bytes, frames: Frames) -> None:
        """Join a connection of the urgent socket to a peer, by the session that the peer was given."""
        try:
            body = read_small(frames, MAX_HELLO_BYTES, _MAX_HELLO_ITEMS)
        except wire.Malformed:
            body = None
        session = body.get("session") if isinstance(body, dict) else None
        if self._peers.bind_urgent(session, identity) is None:
            self._counters["strangers"] += 1
        else:
            self._outlets.urgent(identity, wire.WELCOME)

    def drop(self, peer: RemotePeer, reason: str) -> None:
        """Send a peer away: it broke the protocol, does not read, or cannot be reached any more. It may come back."""
        self._counters["dropped_peers"] += 1
        self._complaints.warn("peer dropped", peer=peer.name, pid=peer.pid, reason=reason)
        self._outlets.tell(peer.control_identity, wire.BYE, {"reason": reason})
        self.remove(peer, reason)

    def remove(self, peer: RemotePeer, reason: str) -> None:
        """Forget a peer: its calls are cancelled, calls to it end with ``unavailable``. Once is enough.

        Others may be found dead on the way. They are seen off one after another, so that a thousand of them need no
        deeper stack than one.
        """
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        self._leaving.append((peer, reason))
        if self._is_seeing_off:
            return
        self._is_seeing_off = True
        try:
            while self._leaving:
                self._see_off(*self._leaving.popleft())
        finally:
            self._is_seeing_off = False

    def _see_off(self, peer: RemotePeer, reason: str) -> None:
        self._release(peer, reason)
        _log.info("peer left", peer=peer.name, generation=peer.generation, reason=reason)
        self._on_change(peer, "gone")

    def heard(self, peer: RemotePeer) -> None:
        """Note that a peer's loop answers."""
        peer.missed_pings = 0
        peer.last_heard = self._clock()
        if peer.state == SUSPECT:
            peer.state = RUNNING
            _log.info("peer answers again", peer=peer.name)
            self._on_change(peer, "running")

    def ping(self, *, count_misses: bool) -> None:
        """Ping every peer; the one that missed three is suspect, the one silent for a minute is gone.

        :param count_misses: False after a jump of the clock, when nobody could have answered
        """
        self._ping_number += 1
        now = self._clock()
        for peer in self._peers:
            if peer not in self._peers:
                continue  # found dead while another one was pinged
            if not count_misses:
                peer.missed_pings, peer.last_heard = 0, now
            elif now - peer.last_heard > GONE_AFTER_S:
                self.drop(peer, f"silent for {GONE_AFTER_S:.0f} s")
                continue
            else:
                self._count_miss(peer)
            if (
                peer.urgent_identity is not None
                and self._outlets.urgent(peer.urgent_identity, wire.PING, number=self._ping_number) == GONE
            ):
                self.drop(peer, "its urgent connection is gone")

    def _count_miss(self, peer: RemotePeer) -> None:
        peer.missed_pings += 1
        if peer.missed_pings > MISSES_TO_SUSPECT and peer.state == RUNNING:
            peer.state = SUSPECT
            self._complaints.warn("peer is suspect", peer=peer.name, pid=peer.pid)
            self._on_change(peer, "suspect")


def read_small(frames: Frames, max_bytes: int, max_items: int) -> Any:
    """Decode a body that is for the hub itself; the hub has no time for large ones.

    :raises Malformed: it is too large, or cannot be read
    """
    size = wire.size_of(frames)
    if size > max_bytes:
        raise wire.Malformed(f"{size} bytes; the hub reads {max_bytes}")
    return wire.decode_body([bytes(frame) for frame in frames], max_items=max_items)


def _claimed_pid(body: Any) -> int:
    """Return the process id that a peer says it has; good for a listing, and for nothing else."""
    pid = body.get("pid")
    return pid if type(pid) is int and 0 < pid < 2**31 else 0
