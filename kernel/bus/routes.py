"""Calls on their way through the hub: who asked, who answers, until when."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from homeagent_sdk.errors import Conflict, Overloaded
from kernel.bus.peers import RemotePeer

MAX_PER_CALLER: Final = 4096
MAX_ROUTES: Final = 65536
_MAX_EARLY_CANCELS = 1024


@dataclass(slots=True)
class Route:
    """One call. ``deadline`` is on the clock of the hub's loop."""

    route_id: int
    caller: RemotePeer
    caller_id: int
    callee: RemotePeer
    method: str
    deadline: float


class Routes:
    """The table of calls under way, by the hub's id and by the caller's."""

    def __init__(self) -> None:
        self._routes: dict[int, Route] = {}
        self._by_caller: dict[tuple[int, int], int] = {}
        self._open_by_caller: dict[int, int] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._early_cancels: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._routes)

    def open(self, caller: RemotePeer, caller_id: int, callee: RemotePeer, method: str, deadline: float) -> Route:
        """Begin a call.

        :raises Conflict: the caller uses this id already
        :raises Overloaded: the caller, or the hub, has too many calls under way
        """
        key = (caller.number, caller_id)
        if key in self._by_caller:
            raise Conflict(f"call {caller_id} is under way already", hint="ids of calls must be unique while they last")
        if self._open_by_caller.get(caller.number, 0) >= MAX_PER_CALLER or len(self._routes) >= MAX_ROUTES:
            raise Overloaded(f"{caller.name} has too many calls under way", hint="wait for some of them")
        self._last_id += 1
        route = Route(self._last_id, caller, caller_id, callee, method, deadline)
        self._routes[route.route_id] = route
        self._by_caller[key] = route.route_id
        self._open_by_caller[caller.number] = self._open_by_caller.get(caller.number, 0) + 1
        heapq.heappush(self._deadlines, (deadline, route.route_id))
        self._trim()
        return route

    def of_callee(self, callee: RemotePeer, route_id: int) -> Route | None:
        """Return the call that a callee answers, if it is under way and really its own."""
        route = self._routes.get(route_id)
        return route if route is not None and route.callee is callee else None

    def of_caller(self, caller: RemotePeer, caller_id: int) -> Route | None:
        """Return the call that a caller means."""
        return self._routes.get(self._by_caller.get((caller.number, caller_id), 0))

    def close(self, route: Route) -> None:
        """End a call."""
        if self._routes.pop(route.route_id, None) is None:
            return
        self._by_caller.pop((route.caller.number, route.caller_id), None)
        left = self._open_by_caller.get(route.caller.number, 1) - 1
        if left:
            self._open_by_caller[route.caller.number] = left
        else:
            self._open_by_caller.pop(route.caller.number, None)

    def note_early_cancel(self, caller: RemotePeer, caller_id: int) -> None:
        """Remember a cancel that overtook its call."""
        self._early_cancels[caller.number, caller_id] = None
        if len(self._early_cancels) > _MAX_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)

    def was_cancelled_early(self, caller: RemotePeer, caller_id: int) -> bool:
        """Tell, once, whether a call was cancelled before it came."""
        return self._early_cancels.pop((caller.number, caller_id), 0) is None

    def of_peer(self, peer: RemotePeer) -> list[Route]:
        """Return all calls that a peer makes or answers."""
        return [route for route in self._routes.values() if route.caller is peer or route.callee is peer]

    def next_deadline(self) -> float | None:
        """Return when the next call expires, if one does."""
        while self._deadlines and self._deadlines[0][1] not in self._routes:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: float) -> list[Route]:
        """Take out and return the calls whose deadline has passed."""
        routes = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            route = self._routes[heapq.heappop(self._deadlines)[1]]
            self.close(route)
            routes.append(route)
        return routes

    def _trim(self) -> None:
        if len(self._deadlines) > 1024 + 2 * len(self._routes):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._routes]
            heapq.heapify(self._deadlines)
