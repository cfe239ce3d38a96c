"""Calls on their way through the hub: who asked, who answers, until when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from homeagent_sdk.errors import Conflict, Overloaded
from kernel.bus.deadlines import Deadlines
from kernel.bus.peers import RemotePeer

MAX_PER_CALLER: Final = 4096
MAX_ROUTES: Final = 65536


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
        self._deadlines = Deadlines(self._routes.keys())
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
        self._deadlines.add(deadline, route.route_id)
        return route

    def of_callee(self, callee: RemotePeer, route_id: int) -> Route | None:
        """Return the call that a callee answers, if it is under way and really its own."""
        route = self._routes.get(route_id)
        return route if route is not None and route.callee is callee else None

    def of_caller(self, caller: RemotePeer, caller_id: int) -> Route | None:
        """Return the call that a caller means."""
        return self._routes.get(self._by_caller.get((caller.number, caller_id), 0))

    def close(self, route: Route) -> bool:
        """End a call; False if it had ended before."""
        if self._routes.pop(route.route_id, None) is None:
            return False
        self._by_caller.pop((route.caller.number, route.caller_id), None)
        left = self._open_by_caller.get(route.caller.number, 1) - 1
        if left:
            self._open_by_caller[route.caller.number] = left
        else:
            self._open_by_caller.pop(route.caller.number, None)
        return True

    def of_peer(self, peer: RemotePeer) -> list[Route]:
        """Return all calls that a peer makes or answers."""
        return [route for route in self._routes.values() if route.caller is peer or route.callee is peer]

    def next_deadline(self) -> float | None:
        """Return when the next call expires, if one does."""
        return self._deadlines.next()

    def expired(self, now: float) -> list[Route]:
        """Take out and return the calls whose deadline has passed."""
        routes = []
        while (number := self._deadlines.pop_due(now)) is not None:
            route = self._routes[number]
            self.close(route)
            routes.append(route)
        return routes
