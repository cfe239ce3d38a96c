"""A turn that a plugin started, and who it acts for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from homeagent_sdk.bus.abc import BusPeer
from homeagent_sdk.errors import Cancelled, Overloaded, TimedOut, Unavailable

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or system whose credential was checked."""

    principal: str
    """The id under which the agent knows them."""
    name: str
    role: Literal["owner", "member"]


class Turn:
    """An input that the kernel has accepted; it gets exactly one outcome.

    ``turn_id`` stays valid for ever; ``status`` is ``accepted``, or ``duplicate`` if the same delivery id had been
    accepted before (then this is the first one's turn).
    """

    def __init__(self, bus: BusPeer, turn_id: str, status: str) -> None:
        self.turn_id = turn_id
        self.status = status
        self._bus = bus

    async def follow(self, timeout_s: float = 600.0, *, outcome_only: bool = False) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the items of the turn until its outcome, which is the last.

        Items are dicts with a ``type``: started, delta and reasoning (``text``), tool (``tool``, ``status``), reset
        (forget the partial text), outcome. Where the kernel is restarted in between, one reset is given and the turn
        is followed again.

        :param outcome_only: spare the way of all items but the outcome
        :raises TimedOut: there was no outcome within ``timeout_s`` seconds; the turn goes on all the same
        :raises HomeAgentError: the turn cannot be followed, e.g. it is not known
        """
        request = {"turn_id": self.turn_id, "outcome_only": outcome_only}
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_s
        pause_s = _FIRST_PAUSE_S
        is_broken = False
        while (left_s := deadline - clock()) > 0:
            try:
                async with self._bus.stream("kernel.follow", request, timeout_s=left_s) as items:
                    async for item in items:
                        is_broken, pause_s = False, _FIRST_PAUSE_S
                        yield item
                        if item.get("type") == "outcome":
                            return
            except (Unavailable, Cancelled, Overloaded):
                pass  # the kernel is restarting, or was just now: the turn itself is safe in its journal
            if not is_broken:
                is_broken = True
                yield {"type": "reset"}
            await asyncio.sleep(min(pause_s, max(0.0, deadline - clock())))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        raise TimedOut(
            f"turn {self.turn_id} had no outcome within {timeout_s:g} s",
            hint="it goes on; follow it again later",
            detail={"turn_id": self.turn_id},
        )

    async def result(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait for the outcome and return it.

        :raises TimedOut: there was none within ``timeout_s`` seconds
        """
        outcome: dict[str, Any] = {}
        async for item in self.follow(timeout_s, outcome_only=True):
            outcome = item
        return outcome
