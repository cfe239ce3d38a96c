"""Calls on their way: checked against the table of rights, routed, answered, cancelled, ended at their deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from kernel.bus.complaints import Complaints
from kernel.bus.membership import read_small
from kernel.bus.outlets import Frames, Outlets
from kernel.bus.parking import Parked, ParkingLot
from kernel.bus.peers import SUSPECT, PeerTable, RemotePeer
from kernel.bus.routes import Routes

MAX_HUB_BODY_BYTES: Final = 128 * 1024
"""The body of a call that the hub itself answers."""
_MAX_HUB_ITEMS: Final = 1024
AnswerHub = Callable[[RemotePeer, str, Any], Any]
"""``answer(peer, method, body)`` returns the reply, or a callable that takes a function to reply with later."""
_log = structlog.get_logger("hub")


class Exchange:
    """Passes calls and casts from peer to peer, and answers back."""

    def __init__(
        self,
        peers: PeerTable,
        routes: Routes,
        outlets: Outlets,
        counters: Counter[str],
        complaints: Complaints,
        clock: Callable[[], float],
        answer_hub: AnswerHub,
    ) -> None:
        self._peers = peers
        self._routes = routes
        self._outlets = outlets
        self._counters = counters
        self._complaints = complaints
        self._clock = clock
        self._answer_hub = answer_hub
        self._parking = ParkingLot(access.SERVICES)

    @property
    def parked(self) -> int:
        """How many calls wait for a service."""
        return len(self._parking)

    # -- from the caller ----------------------------------------------------------------------------------------------

    def call(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        """Pass a call on, park it, answer it, or refuse it. ``header["i"]`` is not 0."""
        call_id, method = header["i"], header.get("m", "")
        try:
            target = self._check(peer, method)
            if peer.was_cancelled_early(call_id):
                raise Cancelled(f"{method} was cancelled before it was sent on")
            if target == "hub":
                self._answer(peer, call_id, method, frames)
                return
            left_ms = min(header.get("d") or wire.DEFAULT_DEADLINE_S * 1000, wire.MAX_DEADLINE_MS)
            deadline = self._clock() + left_ms / 1000
            callee = self._callee(target, method)
            if callee is None:
                self._counters["parked"] += 1
                self._parking.park(Parked(target, peer, header, frames, deadline))
            else:
                self._forward(peer, callee, header, frames, deadline)
        except HomeAgentError as error:
            self._outlets.fail(peer, call_id, error)

    def cast(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        """Pass a cast on; nobody waits for it, so what hinders it is counted and logged."""
        method = header.get("m", "")
        try:
            target = self._check(peer, method)
            if target == "hub":
                self._ask_hub(peer, method, frames)
                return
            callee = self._callee(target, method)
        except HomeAgentError as error:
            self._count_cast("casts_refused", peer, method, str(error))
            return
        lead = wire.encode_header(wire.CAST, method=method, trace=header.get("t", ""), origin=peer.origin)
        if callee is None or not self._outlets.deliver(callee, [lead, *frames]):
            self._count_cast("casts_dropped", peer, method, "its receiver is not there or does not keep up")

    def credit(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        """Let the writer of a stream go on."""
        route = self._routes.of_caller(peer, header.get("i", 0))
        if route is not None:
            number = min(header.get("n", 0), wire.MAX_WINDOW)
            lead = wire.encode_header(wire.CREDIT, call_id=route.route_id, number=number)
            self._outlets.deliver_or_drop(route.callee, [lead])

    def cancel(self, peer: RemotePeer, call_id: int) -> None:
        """Stop a call wherever it is; one that has not come yet is refused when it does."""
        route = self._routes.of_caller(peer, call_id)
        if route is not None:
            self._routes.close(route)
            self._outlets.cancel(route.callee, route.route_id)
            self._outlets.fail(peer, call_id, Cancelled(f"{route.method} was cancelled"))
            return
        parked = self._parking.take(peer, call_id)
        if parked is not None:
            self._outlets.fail(peer, call_id, Cancelled(f"{parked.header['m']} was cancelled"))
        else:
            peer.note_early_cancel(call_id)

    # -- from the callee ----------------------------------------------------------------------------------------------

    def answer(self, peer: RemotePeer, header: wire.Header, frames: Frames) -> None:
        """Pass an answer back to the caller; one that nobody waits for, or of someone else's call, is counted."""
        route = self._routes.of_callee(peer, header.get("i", 0))
        if route is None:
            self._counters["late_answers"] += 1
            return
        kind = header["k"]
        if kind != wire.NEXT:
            self._routes.close(route)
        lead = wire.encode_header(kind, call_id=route.caller_id, number=header.get("n", 0))
        self._outlets.deliver_or_drop(route.caller, [lead, *frames])

    # -- peers that come and go, and time -----------------------------------------------------------------------------

    def welcome(self, peer: RemotePeer) -> None:
        """Pass on the calls that waited for a service."""
        for call in self._parking.release(peer.name):
            if peer not in self._peers:
                self._outlets.fail(call.caller, call.header["i"], unavailable(f"{peer.name} is gone again", sent=False))
            elif call.caller in self._peers:
                self._forward(call.caller, peer, call.header, call.frames, call.deadline)

    def release(self, peer: RemotePeer, reason: str) -> None:
        """End the calls of a peer that has left: those to it fail, those from it are cancelled."""
        self._parking.forget_caller(peer)
        for route in self._routes.of_peer(peer):
            if not self._routes.close(route):
                continue
            if route.callee is not peer:
                self._outlets.cancel(route.callee, route.route_id)
            elif route.caller is not peer:
                error = unavailable(f"{peer.name} is gone: {reason}", sent=True)
                self._outlets.fail(route.caller, route.caller_id, error)

    def expire(self) -> None:
        """End the calls whose deadline has passed, at the caller and at the callee."""
        now = self._clock()
        for route in self._routes.expired(now):
            self._counters["expired"] += 1
            self._outlets.cancel(route.callee, route.route_id)
            error = TimedOut(f"{route.callee.name} did not answer {route.method} in time")
            self._outlets.fail(route.caller, route.caller_id, error)
        for call in self._parking.expired(now):
            self._counters["expired"] += 1
            absent = unavailable(f"{call.service} did not come back in time", sent=False)
            self._outlets.fail(call.caller, call.header["i"], absent)

    def next_deadline(self) -> float | None:
        """Return when :meth:`expire` has to be called next."""
        route, parked = self._routes.next_deadline(), self._parking.next_deadline()
        if route is None or parked is None:
            return parked if route is None else route
        return min(route, parked)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _check(self, peer: RemotePeer, method: str) -> str:
        """Return the name of the peer that a method belongs to, if this peer may call it."""
        if not wire.is_method(method):
            raise Invalid(f"{method[:80]!r} is not a method name", hint="methods are <peer>.<verb> in lower case")
        if not access.is_allowed(peer.name, peer.tier, method):
            self._counters["denied"] += 1
            self._complaints.warn("call refused", peer=peer.name, tier=peer.tier, method=method)
            raise Denied(
                f"{peer.name} ({peer.tier}) may not call {method}", hint="docs/protocol.md lists who may call what"
            )
        return method.partition(".")[0]

    def _callee(self, target: str, method: str) -> RemotePeer | None:
        """Return who answers a method; None when it is a service for which a call may wait."""
        callee = self._peers.named(target)
        if callee is None:
            if self._parking.has_place_for(target):
                return None
            if self._peers.newest_generation(target) is not None:
                raise unavailable(f"{target} is not running", sent=False)
            raise NotFound(f"no peer called {target}", hint="`homeagent plugin list` shows what there is")
        if callee.state == SUSPECT:
            raise unavailable(f"{target} does not answer its pings, so {method} was not sent to it", sent=False)
        return callee

    def _forward(
        self, caller: RemotePeer, callee: RemotePeer, header: wire.Header, frames: Frames, deadline: float
    ) -> None:
        call_id, method = header["i"], header["m"]
        left_ms = int((deadline - self._clock()) * 1000)
        try:
            if left_ms <= 0:
                raise TimedOut(f"no time was left for {method}")
            route = self._routes.open(caller, call_id, callee, method, deadline)
        except HomeAgentError as error:
            self._outlets.fail(caller, call_id, error)
            return
        lead = wire.encode_header(
            wire.CALL,
            call_id=route.route_id,
            method=method,
            deadline_ms=left_ms,
            trace=header.get("t", ""),
            number=min(header.get("n", 0), wire.MAX_WINDOW),
            origin=caller.origin,
        )
        self._counters["calls"] += 1
        if not self._outlets.deliver(callee, [lead, *frames]) and self._routes.close(route):
            self._counters["calls_refused_full"] += 1
            self._complaints.warn("call refused: the callee does not keep up", peer=callee.name, method=method)
            full = Overloaded(f"{callee.name} does not keep up", hint="try again later")
            self._outlets.fail(caller, call_id, full)

    def _count_cast(self, counter: str, peer: RemotePeer, method: str, reason: str) -> None:
        self._counters[counter] += 1
        self._complaints.warn(
            "cast dropped", peer=peer.name, method=method, reason=reason, total=self._counters[counter]
        )

    def _answer(self, peer: RemotePeer, call_id: int, method: str, frames: Frames) -> None:
        answer = self._ask_hub(peer, method, frames)
        if callable(answer):
            answer(lambda value: self._outlets.reply(peer, call_id, value))
        else:
            self._outlets.reply(peer, call_id, answer)

    def _ask_hub(self, peer: RemotePeer, method: str, frames: Frames) -> Any:
        """Let the hub answer one of its own methods.

        :raises HomeAgentError: for whatever goes wrong
        """
        try:
            return self._answer_hub(peer, method, read_small(frames, MAX_HUB_BODY_BYTES, _MAX_HUB_ITEMS))
        except wire.Malformed as error:
            raise Invalid(f"the body of {method} cannot be read: {error}") from error
        except HomeAgentError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Invalid(f"{method} was called with a body that does not fit: {error!r}"[:300]) from error
        except Exception as error:
            _log.exception("hub method failed", method=method)
            raise Internal(f"{method} failed", hint="the kernel's log has more") from error


def unavailable(message: str, *, sent: bool) -> Unavailable:
    """Make the error for a peer that is not there; ``sent`` tells whether the call may have reached it."""
    return Unavailable(message, hint="it is restarting; try again", detail={"bus": True, "sent": sent})
