"""What the hub sends: at once where the socket takes it, else from a bounded outbox for each peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import HomeAgentError
from kernel.bus.complaints import Complaints
from kernel.bus.peers import PeerTable, RemotePeer

Frames = Sequence[Any]
"""Frames as they came from a socket: whatever has a length and the buffer interface."""
SENT: Final = "sent"
FULL: Final = "full"
GONE: Final = "gone"
Send = Callable[[bytes, Frames], str]
"""``send(identity, frames)`` returns SENT, FULL or GONE, and never blocks."""


class Outlets:
    """Sends to peers. One that does not read fills its own outbox, and nobody else's.

    :param on_gone: called with (peer, reason) when a peer turns out to be disconnected
    :param on_stuck: called with (peer, reason) when a peer let its outbox run over with answers, which must not be lost
    """

    def __init__(
        self,
        peers: PeerTable,
        send_control: Send,
        send_urgent: Send,
        counters: Counter[str],
        complaints: Complaints,
        on_gone: Callable[[RemotePeer, str], None],
        on_stuck: Callable[[RemotePeer, str], None],
    ) -> None:
        self._peers = peers
        self._send_control = send_control
        self._send_urgent = send_urgent
        self._counters = counters
        self._complaints = complaints
        self._on_gone = on_gone
        self._on_stuck = on_stuck

    def deliver(self, peer: RemotePeer, frames: Frames, *, is_answer: bool = False) -> bool:
        """Send, or keep until the socket takes it; False when the outbox is full, or the peer is gone."""
        if peer.outbox:
            return peer.keep(frames, is_answer=is_answer)
        outcome = self._send_control(peer.control_identity, frames)
        if outcome == GONE:
            self._on_gone(peer, "disconnected")
            return False
        return outcome == SENT or peer.keep(frames, is_answer=is_answer)

    def deliver_or_drop(self, peer: RemotePeer, frames: Frames) -> None:
        """Send what must not be lost: a peer that has no room for it left is dropped."""
        if peer in self._peers and not self.deliver(peer, frames, is_answer=True) and peer in self._peers:
            self._on_stuck(peer, "does not read its messages")

    def reply(self, peer: RemotePeer, call_id: int, value: Any) -> None:
        """Answer a call from the hub itself."""
        self.deliver_or_drop(peer, [wire.encode_header(wire.REPLY, call_id=call_id), *wire.encode_body(value)])

    def fail(self, peer: RemotePeer, call_id: int, error: HomeAgentError) -> None:
        """End a call with an error."""
        header = wire.encode_header(wire.ERROR, call_id=call_id)
        self.deliver_or_drop(peer, [header, *wire.encode_body(error.to_wire())])

    def cancel(self, callee: RemotePeer, route_id: int) -> None:
        """Cancel a call at its callee; over the control socket as long as there is no urgent one."""
        frames = [wire.encode_header(wire.CANCEL, call_id=route_id)]
        if callee.urgent_identity is None:
            if callee in self._peers and not self.deliver(callee, frames):
                self._count_lost_cancel(callee)
        elif self._send_urgent(callee.urgent_identity, frames) == FULL:
            self._count_lost_cancel(callee)

    def _count_lost_cancel(self, callee: RemotePeer) -> None:
        self._counters["cancels_dropped"] += 1
        self._complaints.warn("cancel dropped; the callee's deadline ends the call", peer=callee.name)

    def urgent(self, identity: bytes, kind: str, *, number: int = 0, body: Any = None) -> str:
        """Send over the urgent socket; what it does not take is lost, since it would be late."""
        frames = [wire.encode_header(kind, call_id=number)]
        return self._send_urgent(identity, frames if body is None else [*frames, *wire.encode_body(body)])

    def tell(self, identity: bytes, kind: str, body: Any) -> None:
        """Send a message of the handshake to a connection."""
        self._send_control(identity, [wire.encode_header(kind), *wire.encode_body(body)])

    def flush(self) -> bool:
        """Try to send what waits in the outboxes; True while something still waits."""
        return any([self._flush_peer(peer) for peer in self._peers if peer.outbox])

    def _flush_peer(self, peer: RemotePeer) -> bool:
        while peer.outbox:
            outcome = self._send_control(peer.control_identity, peer.outbox[0])
            if outcome == FULL:
                return True
            if outcome == GONE:
                self._on_gone(peer, "disconnected")
                return False
            peer.take_from_outbox()
        return False
