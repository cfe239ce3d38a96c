"""Where a call waits until the hub knows this peer and takes messages."""

from __future__ import annotations

import asyncio

from homeagent_sdk.bus.session import Session
from homeagent_sdk.bus.uplink import Uplink
from homeagent_sdk.errors import Cancelled, Conflict, Overloaded, Unavailable

MAX_WAITING = 1024
"""Calls and casts that may wait; one more is refused with ``overloaded``."""


class Gate:
    """Lets calls through while the peer is welcome and not too much waits to be sent already."""

    def __init__(self, session: Session, uplink: Uplink) -> None:
        self._session = session
        self._uplink = uplink
        self._waiting = 0
        self.is_closed = False
        """Set when the peer stops; who waits then gets ``cancelled``."""

    async def passed(self, method: str, deadline: float) -> None:
        """Return when ``method`` may be sent.

        :raises Unavailable: the hub did not come back before the deadline
        :raises Overloaded: too many wait already, or the hub does not take what is sent to it
        :raises Cancelled: the peer is not running
        :raises Conflict: another process has taken this peer's place
        """
        if self._session.is_welcome and not self._uplink.is_crowded and not self.is_closed:
            return
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} calls wait for the kernel already", hint="try again when it is back")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._wait(method)
        except TimeoutError as error:
            if self._session.is_welcome:
                raise Overloaded(f"{method} was not sent: the kernel does not keep up", hint="try later") from error
            raise Unavailable(
                f"{method} was not sent: the kernel did not come back in time",
                hint="is HomeAgent running? `homeagent status` tells",
                detail={"bus": True, "sent": False},
            ) from error
        finally:
            self._waiting -= 1

    async def _wait(self, method: str) -> None:
        while True:
            if self.is_closed or not self._uplink.is_open:
                raise Cancelled(f"{method} was not sent: this peer is not running")
            if self._session.replaced is not None:
                raise Conflict(f"{method} was not sent: {self._session.replaced.message}")
            if not self._session.is_welcome:
                await self._session.changed()
            elif self._uplink.is_crowded:
                await self._uplink.room()
            else:
                return
