"""Calls that wait for a restarting service to come back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import Conflict, Overloaded
from kernel.bus.deadlines import Deadlines
from kernel.bus.peers import RemotePeer

MAX_PARKED: Final = 256
"""Calls that wait for one service; one more is refused with ``overloaded``."""
MAX_PARKED_BYTES: Final = 32 * 1024 * 1024
"""Their bodies, for one service."""


@dataclass(slots=True)
class Parked:
    """One call as it came, with its deadline on the clock of the hub's loop."""

    service: str
    caller: RemotePeer
    header: wire.Header
    frames: Sequence[Any]
    deadline: float

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the call while it lasts."""
        return self.caller.number, self.header["i"]


class ParkingLot:
    """The waiting calls, in the order in which they came."""

    def __init__(self, services: Iterable[str]) -> None:
        self._count = dict.fromkeys(services, 0)
        self._bytes = dict.fromkeys(self._count, 0)
        self._calls: dict[int, Parked] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._deadlines = Deadlines(self._calls.keys())
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._calls)

    def has_place_for(self, service: str) -> bool:
        """Tell whether calls may wait for a service of this name."""
        return service in self._count

    def park(self, call: Parked) -> None:
        """Keep a call until its service is back or its deadline has passed.

        :raises Conflict: its caller has a call of the same id waiting
        :raises Overloaded: too many wait for this service already
        """
        service, size = call.service, wire.size_of(call.frames)
        if call.key in self._numbers:
            raise Conflict("a call with this id waits already", hint="ids of calls must be unique while they last")
        if self._count[service] >= MAX_PARKED or self._bytes[service] + size > MAX_PARKED_BYTES:
            raise Overloaded(
                f"{self._count[service]} calls wait for {service} already", hint="try again when it is back"
            )
        self._last_number += 1
        self._calls[self._last_number] = call
        self._numbers[call.key] = self._last_number
        self._count[service] += 1
        self._bytes[service] += size
        self._deadlines.add(call.deadline, self._last_number)

    def release(self, service: str) -> list[Parked]:
        """Take out all calls that wait for a service."""
        if not self._count.get(service):
            return []
        return [self._take(number) for number, call in list(self._calls.items()) if call.service == service]

    def take(self, caller: RemotePeer, call_id: int) -> Parked | None:
        """Take out one call, if it waits here."""
        number = self._numbers.get((caller.number, call_id))
        return None if number is None else self._take(number)

    def forget_caller(self, caller: RemotePeer) -> None:
        """Drop the calls of a peer that is gone."""
        for number in [number for key, number in self._numbers.items() if key[0] == caller.number]:
            self._take(number)

    def next_deadline(self) -> float | None:
        """Return when the next call expires, if one does."""
        return self._deadlines.next()

    def expired(self, now: float) -> list[Parked]:
        """Take out the calls whose deadline has passed."""
        calls = []
        while (number := self._deadlines.pop_due(now)) is not None:
            calls.append(self._take(number))
        return calls

    def _take(self, number: int) -> Parked:
        call = self._calls.pop(number)
        del self._numbers[call.key]
        self._count[call.service] -= 1
        self._bytes[call.service] -= wire.size_of(call.frames)
        return call
