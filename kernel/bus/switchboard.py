"""What the hub does with each message. Knows the protocol and the table of rights; knows no socket and no thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from homeagent_sdk.bus import wire
from kernel.bus.admission import Admission
from kernel.bus.complaints import Complaints
from kernel.bus.exchange import AnswerHub, Exchange
from kernel.bus.membership import Membership
from kernel.bus.outlets import FULL, GONE, SENT, Frames, Outlets, Send
from kernel.bus.peers import PeerTable, RemotePeer
from kernel.bus.routes import Routes

__all__ = ["FULL", "GONE", "SENT", "Frames", "Switchboard"]


class Switchboard:
    """The hub's logic: reads the header of every message and hands it to whom it concerns.

    :param send_control: ``(identity, frames) -> SENT, FULL or GONE``; never blocks
    :param send_urgent: the same for the urgent socket
    :param on_change: called with (peer, what), what being up, running, suspect or gone
    :param answer_hub: answers ``hub.*`` calls: ``(peer, method, body) -> reply``, or a callable that takes a function
        to reply with later
    :param clock: the clock of the hub's loop, seconds
    """

    def __init__(
        self,
        epoch: str,
        admission: Admission,
        send_control: Send,
        send_urgent: Send,
        on_change: Callable[[RemotePeer, str], None],
        answer_hub: AnswerHub,
        clock: Callable[[], float],
    ) -> None:
        self.epoch = epoch
        self.admission = admission
        self.peers = PeerTable()
        self.routes = Routes()
        self.counters: Counter[str] = Counter()
        self._complaints = Complaints(clock)
        self._outlets = Outlets(
            self.peers, send_control, send_urgent, self.counters, self._complaints, self.remove, self.drop
        )
        self._exchange = Exchange(
            self.peers, self.routes, self._outlets, self.counters, self._complaints, clock, answer_hub
        )
        self._membership = Membership(
            epoch,
            admission,
            self.peers,
            self._outlets,
            self.counters,
            self._complaints,
            clock,
            self._exchange.release,
            self._exchange.welcome,
            on_change,
        )
        self._by_kind: dict[str, Callable[[RemotePeer, wire.Header, Frames], None]] = {
            wire.CALL: self._on_call,
            wire.CAST: self._exchange.cast,
            wire.REPLY: self._exchange.answer,
            wire.ERROR: self._exchange.answer,
            wire.END: self._exchange.answer,
            wire.NEXT: self._exchange.answer,
            wire.CREDIT: self._exchange.credit,
            wire.BYE: lambda peer, header, frames: self.remove(peer, "said bye"),
        }

    @property
    def parked(self) -> int:
        """How many calls wait for a service that is not there."""
        return self._exchange.parked

    # -- what comes in ------------------------------------------------------------------------------------------------

    def take_control(self, identity: bytes, frames: Frames, pid: Callable[[], int] = lambda: 0) -> None:
        """Handle a message of the control socket; whatever it is, the hub goes on.

        :param pid: returns the sender's process id as the operating system tells it, else 0; asked at a hello
        """
        peer = self.peers.at_control(identity)
        header = self._read(peer, frames)
        if header is None:
            return
        kind = header["k"]
        if kind == wire.HELLO:
            self._membership.hello(identity, frames[1:], pid())
        elif peer is None:
            self.counters["strangers"] += 1
            if kind != wire.BYE:
                self._outlets.tell(identity, wire.BYE, {"reason": "say hello first"})
        else:
            handler = self._by_kind.get(kind)
            if handler is None:
                self.drop(peer, f"sent {kind} on the control socket")
            else:
                handler(peer, header, frames[1:])

    def take_urgent(self, identity: bytes, frames: Frames) -> None:
        """Handle a message of the urgent socket."""
        peer = self.peers.at_urgent(identity)
        header = self._read(peer, frames)
        if header is None:
            return
        kind, number = header["k"], header.get("i", 0)
        if kind == wire.HELLO:
            self._membership.bind_urgent(identity, frames[1:])
        elif peer is None:
            self.counters["strangers"] += 1
        elif kind == wire.PONG:
            self._membership.heard(peer)
        elif kind == wire.CANCEL:
            self._exchange.cancel(peer, number)
        elif kind == wire.PING:
            self._outlets.urgent(identity, wire.PONG, number=number)
        else:
            self.drop(peer, f"sent {kind} on the urgent socket")

    def _read(self, peer: RemotePeer | None, frames: Frames) -> wire.Header | None:
        try:
            if not 1 <= len(frames) <= wire.MAX_FRAMES:
                raise wire.Malformed(f"{len(frames)} frames")
            if (size := wire.size_of(frames)) > wire.MAX_MESSAGE_BYTES:
                raise wire.Malformed(f"{size} bytes; the limit is {wire.MAX_MESSAGE_BYTES}")
            return wire.decode_header(frames[0])
        except wire.Malformed as error:
            self.counters["malformed"] += 1
            if peer is not None:
                self.drop(peer, f"sent garbage: {error}")
            else:
                self._complaints.warn("garbage from a stranger", reason=str(error), total=self.counters["malformed"])
            return None

    def _on_call(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        if header.get("i", 0) == 0:
            self.drop(peer, "sent a call without an id")
        else:
            self._exchange.call(peer, header, frames)

    # -- leaving, time, and what waits to go out ----------------------------------------------------------------------

    def drop(self, peer: RemotePeer, reason: str) -> None:
        """Send a peer away: it broke the protocol, or does not read."""
        if peer in self.peers:
            self._membership.drop(peer, reason)

    def remove(self, peer: RemotePeer, reason: str) -> None:
        """Forget a peer: its calls are cancelled, calls to it end with ``unavailable``."""
        self._membership.remove(peer, reason)

    def expire(self) -> None:
        """End the calls whose deadline has passed, at the caller and at the callee."""
        self._exchange.expire()

    def next_deadline(self) -> float | None:
        """Return when :meth:`expire` has to be called next."""
        return self._exchange.next_deadline()

    def ping(self, *, count_misses: bool) -> None:
        """Ping every peer; the one that missed three is suspect, the one silent for a minute is gone.

        :param count_misses: False after a jump of the clock, when nobody could have answered
        """
        self._membership.ping(count_misses=count_misses)

    def flush(self) -> bool:
        """Try to send what waits in the outboxes; True while something still waits."""
        return self._outlets.flush()
