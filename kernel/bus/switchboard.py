"""What the hub does with each message. Knows the protocol and the table of rights; knows no socket and no thread."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import (
    Cancelled,
    Denied,
    HomeAgentError,
    Internal,
    Invalid,
    NotFound,
    Overloaded,
    TimedOut,
    Unavailable,
)
from kernel.bus import access
from kernel.bus.admission import Admission, Admitted, refuse_older
from kernel.bus.peers import RUNNING, SUSPECT, PeerTable, RemotePeer
from kernel.bus.routes import Route, Routes

MAX_PARKED: Final = 256
"""Calls that wait for one restarting service; one more is refused with ``overloaded``."""
MISSES_TO_SUSPECT: Final = 3
GONE_AFTER_S: Final = 60.0

Frames = Sequence[Any]
SENT, FULL, GONE = "sent", "full", "gone"
_log = structlog.get_logger("hub")


class Parked:
    """A call that waits for its service to come back."""

    __slots__ = ("caller", "deadline", "frames", "header")

    def __init__(self, caller: RemotePeer, header: wire.Header, frames: Frames, deadline: float) -> None:
        self.caller = caller
        self.header = header
        self.frames = frames
        self.deadline = deadline


class Switchboard:
    """The hub's logic.

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
        send_control: Callable[[bytes, Frames], str],
        send_urgent: Callable[[bytes, Frames], str],
        on_change: Callable[[RemotePeer, str], None],
        answer_hub: Callable[[RemotePeer, str, Any], Any],
        clock: Callable[[], float],
    ) -> None:
        self.epoch = epoch
        self.admission = admission
        self.peers = PeerTable()
        self.routes = Routes()
        self.counters: Counter[str] = Counter()
        self._send_control = send_control
        self._send_urgent = send_urgent
        self._on_change = on_change
        self._answer_hub = answer_hub
        self._clock = clock
        self._parked: dict[str, deque[Parked]] = {name: deque() for name in access.SERVICES}
        self._ping_number = 0
        self._by_kind: dict[str, Callable[[RemotePeer, wire.Header, Frames], None]] = {
            wire.CALL: self._on_call,
            wire.CAST: self._on_cast,
            wire.REPLY: self._on_answer,
            wire.ERROR: self._on_answer,
            wire.END: self._on_answer,
            wire.NEXT: self._on_answer,
            wire.CREDIT: self._on_credit,
            wire.BYE: self._on_bye,
        }

    # -- what comes in ------------------------------------------------------------------------------------------------

    def take_control(self, identity: bytes, frames: Frames, pid: int = 0) -> None:
        """Handle a message of the control socket; whatever it is, the hub goes on."""
        peer = self.peers.at_control(identity)
        header = self._read(identity, peer, frames)
        if header is None:
            return
        if header["k"] == wire.HELLO:
            self._on_hello(identity, frames[1:], pid)
        elif peer is None:
            self.counters["strangers"] += 1
            self._tell(identity, wire.BYE, {"reason": "say hello first"})
        else:
            handler = self._by_kind.get(header["k"])
            if handler is None:
                self.drop(peer, f"sent {header['k']} on the control socket")
            else:
                handler(peer, header, frames[1:])

    def take_urgent(self, identity: bytes, frames: Frames) -> None:
        """Handle a message of the urgent socket."""
        peer = self.peers.at_urgent(identity)
        header = self._read(identity, peer, frames)
        if header is None:
            return
        kind = header["k"]
        if kind == wire.HELLO:
            self._bind_urgent(identity, frames[1:])
        elif peer is None:
            self.counters["strangers"] += 1
        elif kind == wire.PONG:
            self._heard(peer)
        elif kind == wire.CANCEL:
            self._on_cancel(peer, header.get("i", 0))
        elif kind == wire.PING:
            self._send_urgent(identity, [wire.encode_header(wire.PONG, call_id=header.get("i", 0))])
        else:
            self.drop(peer, f"sent {kind} on the urgent socket")

    def _read(self, identity: bytes, peer: RemotePeer | None, frames: Frames) -> wire.Header | None:
        try:
            if not 1 <= len(frames) <= wire.MAX_FRAMES:
                raise wire.Malformed(f"{len(frames)} frames")
            return wire.decode_header(frames[0])
        except wire.Malformed as error:
            self.counters["malformed"] += 1
            if peer is not None:
                self.drop(peer, f"sent garbage: {error}")
            elif self.counters["malformed"] <= 100 or self.counters["malformed"] % 1000 == 0:
                _log.warning("garbage from a stranger", reason=str(error), total=self.counters["malformed"])
            return None

    # -- joining and leaving ------------------------------------------------------------------------------------------

    def _on_hello(self, identity: bytes, frames: Frames, pid: int) -> None:
        try:
            body = wire.decode_body(frames)
            answer = self.admission.hello(identity, body, pid)
            if isinstance(answer, bytes):
                self._tell(identity, wire.CHALLENGE, {"nonce": answer, "epoch": self.epoch})
            else:
                self._admit(identity, answer, pid or int(body.get("pid") or 0))
        except wire.Malformed as error:
            self._refuse_hello(identity, Invalid(f"the hello cannot be read: {error}"))
        except (HomeAgentError, ValueError, TypeError) as error:
            known = error if isinstance(error, HomeAgentError) else Invalid("the hello has fields of the wrong type")
            self._refuse_hello(identity, known)

    def _refuse_hello(self, identity: bytes, error: HomeAgentError) -> None:
        self.counters["refused_hellos"] += 1
        _log.warning("hello refused", reason=error.message)
        self._tell(identity, wire.ERROR, error.to_wire())

    def _admit(self, identity: bytes, admitted: Admitted, pid: int) -> None:
        refuse_older(admitted.name, admitted.generation, self.peers.seen.get(admitted.name, 0))
        for old in (self.peers.named(admitted.name), self.peers.at_control(identity)):
            if old is not None:
                self.remove(old, "replaced by a newer connection")
        peer = self.peers.add(admitted.name, admitted.tier, admitted.generation, pid, identity)
        _log.info("peer joined", peer=peer.name, tier=peer.tier, generation=peer.generation, pid=pid)
        welcome = {"epoch": self.epoch, "name": peer.name, "tier": peer.tier, "session": peer.session}
        self._tell(identity, wire.WELCOME, welcome)
        self._on_change(peer, "up")
        parked = self._parked.get(peer.name)
        while parked:
            call = parked.popleft()
            self._forward_call(call.caller, peer, call.header, call.frames, call.deadline)

    def _bind_urgent(self, identity: bytes, frames: Frames) -> None:
        try:
            body = wire.decode_body(frames)
        except wire.Malformed:
            body = None
        session = body.get("session") if isinstance(body, dict) else None
        if self.peers.bind_urgent(session, identity) is None:
            self.counters["strangers"] += 1

    def _on_bye(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        self.remove(peer, "said bye")

    def drop(self, peer: RemotePeer, reason: str) -> None:
        """Send a peer away: it broke the protocol, or does not read."""
        self.counters["dropped_peers"] += 1
        _log.warning("peer dropped", peer=peer.name, pid=peer.pid, reason=reason)
        self._send_control(peer.control_identity, [wire.encode_header(wire.BYE), *wire.encode_body({"reason": reason})])
        self.remove(peer, reason)

    def remove(self, peer: RemotePeer, reason: str) -> None:
        """Forget a peer: its calls are cancelled, calls to it end with ``unavailable``."""
        self.peers.remove(peer)
        for name in self._parked:
            self._parked[name] = deque(call for call in self._parked[name] if call.caller is not peer)
        for route in self.routes.of_peer(peer):
            self.routes.close(route)
            if route.callee is not peer:
                self._cancel_at(route)
            elif route.caller is not peer:
                self._fail(route.caller, route.caller_id, _unavailable(f"{peer.name} is gone: {reason}", sent=True))
        _log.info("peer left", peer=peer.name, generation=peer.generation, reason=reason)
        self._on_change(peer, "gone")

    # -- calls --------------------------------------------------------------------------------------------------------

    def _on_call(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        call_id, method = header.get("i", 0), header.get("m", "")
        if call_id == 0:
            self.drop(peer, "sent a call without an id")
            return
        try:
            self._check(peer, method)
            if self.routes.was_cancelled_early(peer, call_id):
                raise Cancelled(f"{method} was cancelled before it was sent on")
            deadline = self._clock() + (header.get("d") or wire.DEFAULT_DEADLINE_S * 1000) / 1000
            target = method.partition(".")[0]
            if target == "hub":
                self._answer(peer, call_id, method, frames)
                return
            callee = self._callee(target, method)
            if callee is None:
                self._park(target, Parked(peer, header, frames, deadline))
            else:
                self._forward_call(peer, callee, header, frames, deadline)
        except HomeAgentError as error:
            self._fail(peer, call_id, error)

    def _check(self, peer: RemotePeer, method: str) -> None:
        if not wire.is_method(method):
            raise Invalid(f"{method[:80]!r} is not a method name", hint="methods are <peer>.<verb> in lower case")
        if not access.is_allowed(peer.name, peer.tier, method):
            self.counters["denied"] += 1
            _log.warning("call refused", peer=peer.name, tier=peer.tier, method=method)
            raise Denied(
                f"{peer.name} ({peer.tier}) may not call {method}", hint="docs/protocol.md lists who may call what"
            )

    def _callee(self, target: str, method: str) -> RemotePeer | None:
        callee = self.peers.named(target)
        if callee is None:
            if target in self._parked:
                return None
            if target in self.peers.seen:
                raise _unavailable(f"{target} is not running", sent=False)
            raise NotFound(f"no peer called {target}", hint="`homeagent plugin list` shows what there is")
        if callee.state == SUSPECT:
            raise _unavailable(f"{target} does not answer its pings, so {method} was not sent to it", sent=False)
        return callee

    def _park(self, target: str, call: Parked) -> None:
        if len(self._parked[target]) >= MAX_PARKED:
            raise Overloaded(f"{MAX_PARKED} calls wait for {target} already", hint="try again when it is back")
        self.counters["parked"] += 1
        self._parked[target].append(call)

    def _forward_call(
        self, caller: RemotePeer, callee: RemotePeer, header: wire.Header, frames: Frames, deadline: float
    ) -> None:
        call_id, method = header["i"], header["m"]
        left_ms = int((deadline - self._clock()) * 1000)
        try:
            if left_ms <= 0:
                raise TimedOut(f"no time was left for {method}")
            route = self.routes.open(caller, call_id, callee, method, deadline)
        except HomeAgentError as error:
            self._fail(caller, call_id, error)
            return
        lead = wire.encode_header(
            wire.CALL,
            call_id=route.route_id,
            method=method,
            deadline_ms=left_ms,
            trace=header.get("t", ""),
            number=header.get("n", 0),
            origin=caller.origin,
        )
        self.counters["calls"] += 1
        if not self._deliver(callee, [lead, *frames]) and callee in self.peers:
            self.routes.close(route)
            self._fail(caller, call_id, Overloaded(f"{callee.name} does not keep up", hint="try again later"))

    def _on_cast(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        method = header.get("m", "")
        try:
            self._check(peer, method)
            target = method.partition(".")[0]
            if target == "hub":
                self._answer_hub(peer, method, wire.decode_body(frames))
                return
            callee = self._callee(target, method)
        except (HomeAgentError, wire.Malformed) as error:
            self._count_cast("casts_refused", peer, method, str(error))
            return
        lead = wire.encode_header(wire.CAST, method=method, trace=header.get("t", ""), origin=peer.origin)
        if callee is None or not self._deliver(callee, [lead, *frames]):
            self._count_cast("casts_dropped", peer, method, "its receiver is not there or does not keep up")

    def _count_cast(self, counter: str, peer: RemotePeer, method: str, reason: str) -> None:
        self.counters[counter] += 1
        _log.warning("cast dropped", peer=peer.name, method=method, reason=reason, total=self.counters[counter])

    def _on_answer(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        route = self.routes.of_callee(peer, header.get("i", 0))
        if route is None:
            self.counters["late_answers"] += 1
            return
        kind = header["k"]
        if kind != wire.NEXT:
            self.routes.close(route)
        lead = wire.encode_header(kind, call_id=route.caller_id, number=header.get("n", 0))
        self._deliver_or_drop(route.caller, [lead, *frames])

    def _on_credit(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        route = self.routes.of_caller(peer, header.get("i", 0))
        if route is not None:
            number = min(header.get("n", 0), wire.MAX_WINDOW)
            self._deliver_or_drop(
                route.callee, [wire.encode_header(wire.CREDIT, call_id=route.route_id, number=number)]
            )

    def _on_cancel(self, peer: RemotePeer, call_id: int) -> None:
        route = self.routes.of_caller(peer, call_id)
        if route is not None:
            self.routes.close(route)
            self._cancel_at(route)
            self._fail(peer, call_id, Cancelled(f"{route.method} was cancelled"))
            return
        for calls in self._parked.values():
            for call in calls:
                if call.caller is peer and call.header["i"] == call_id:
                    calls.remove(call)
                    self._fail(peer, call_id, Cancelled(f"{call.header['m']} was cancelled"))
                    return
        self.routes.note_early_cancel(peer, call_id)

    def _cancel_at(self, route: Route) -> None:
        if route.callee.urgent_identity is not None:
            self._send_urgent(route.callee.urgent_identity, [wire.encode_header(wire.CANCEL, call_id=route.route_id)])

    def _answer(self, peer: RemotePeer, call_id: int, method: str, frames: Frames) -> None:
        def reply(value: Any) -> None:
            if peer in self.peers:
                self._deliver_or_drop(peer, [wire.encode_header(wire.REPLY, call_id=call_id), *wire.encode_body(value)])

        try:
            answer = self._answer_hub(peer, method, wire.decode_body(frames))
        except wire.Malformed as error:
            raise Invalid(f"the body of {method} cannot be read: {error}") from error
        except HomeAgentError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Invalid(f"{method} was called with a body that does not fit: {error!r}"[:300]) from error
        except Exception as error:
            _log.exception("hub method failed", method=method)
            raise Internal(f"{method} failed", hint="the kernel's log has more") from error
        if callable(answer):
            answer(reply)
        else:
            reply(answer)

    # -- time ---------------------------------------------------------------------------------------------------------

    def expire(self) -> None:
        """End the calls whose deadline has passed, at the caller and at the callee."""
        now = self._clock()
        for route in self.routes.expired(now):
            self.counters["expired"] += 1
            self._cancel_at(route)
            self._fail(
                route.caller, route.caller_id, TimedOut(f"{route.callee.name} did not answer {route.method} in time")
            )
        for name, calls in self._parked.items():
            while calls and min(call.deadline for call in calls) <= now:
                call = min(calls, key=lambda parked: parked.deadline)
                calls.remove(call)
                self.counters["expired"] += 1
                self._fail(call.caller, call.header["i"], _unavailable(f"{name} did not come back in time", sent=False))

    def next_deadline(self) -> float | None:
        """Return when :meth:`expire` has to be called next."""
        deadlines = [call.deadline for calls in self._parked.values() for call in calls]
        route = self.routes.next_deadline()
        if route is not None:
            deadlines.append(route)
        return min(deadlines, default=None)

    def ping(self, *, count_misses: bool) -> None:
        """Ping every peer; the one that missed three is suspect, the one silent for a minute is gone.

        :param count_misses: False after a jump of the clock, when nobody could have answered
        """
        self._ping_number += 1
        frames = [wire.encode_header(wire.PING, call_id=self._ping_number)]
        for peer in self.peers:
            if count_misses:
                peer.missed_pings += 1
                if peer.missed_pings > MISSES_TO_SUSPECT and peer.state == RUNNING:
                    peer.state = SUSPECT
                    _log.warning("peer is suspect", peer=peer.name, pid=peer.pid)
                    self._on_change(peer, "suspect")
                if self._clock() - peer.last_heard > GONE_AFTER_S:
                    self.remove(peer, f"silent for {GONE_AFTER_S:.0f} s")
                    continue
            if peer.urgent_identity is not None and self._send_urgent(peer.urgent_identity, frames) == GONE:
                self.remove(peer, "disconnected")

    def _heard(self, peer: RemotePeer) -> None:
        peer.missed_pings = 0
        peer.last_heard = self._clock()
        if peer.state == SUSPECT:
            peer.state = RUNNING
            _log.info("peer answers again", peer=peer.name)
            self._on_change(peer, "running")

    # -- what goes out ------------------------------------------------------------------------------------------------

    def flush(self) -> bool:
        """Try to send what waits in the outboxes; True while something still waits."""
        still_waiting = False
        for peer in self.peers:
            while peer.outbox:
                outcome = self._send_control(peer.control_identity, peer.outbox[0])
                if outcome == GONE:
                    self.remove(peer, "disconnected")
                    break
                if outcome == FULL:
                    still_waiting = True
                    break
                peer.take_from_outbox()
        return still_waiting

    def _deliver(self, peer: RemotePeer, frames: Frames) -> bool:
        if peer.outbox:
            return peer.keep(frames)
        outcome = self._send_control(peer.control_identity, frames)
        if outcome == GONE:
            self.remove(peer, "disconnected")
            return False
        return outcome == SENT or peer.keep(frames)

    def _deliver_or_drop(self, peer: RemotePeer, frames: Frames) -> None:
        if peer in self.peers and not self._deliver(peer, frames) and peer in self.peers:
            self.drop(peer, "does not read its messages")

    def _fail(self, caller: RemotePeer, call_id: int, error: HomeAgentError) -> None:
        header = wire.encode_header(wire.ERROR, call_id=call_id)
        self._deliver_or_drop(caller, [header, *wire.encode_body(error.to_wire())])

    def _tell(self, identity: bytes, kind: str, body: Any) -> None:
        self._send_control(identity, [wire.encode_header(kind), *wire.encode_body(body)])


def _unavailable(message: str, *, sent: bool) -> Unavailable:
    return Unavailable(message, hint="it is restarting; try again", detail={"bus": True, "sent": sent})
