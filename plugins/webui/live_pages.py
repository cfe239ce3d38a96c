"""The pages that are open, and what is pushed to them without their asking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from .paced import paced

Event = dict[str, Any]

PAGES = 128
"""How many pages may be open; beyond, the oldest has to connect again when there is room."""

_WAITING_EVENTS = 64
_KEEP_ALIVE_S = 15.0


class LivePage:
    """One open page: a queue of 64 events. A page that reads too slowly is cut off and starts over from history."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(_WAITING_EVENTS)
        self.is_open = True

    def push(self, event: Event) -> bool:
        """Queue an event; false if the page was too slow and is closed instead."""
        if not self.is_open:
            return False
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self.close()
            return False
        return True

    def close(self) -> None:
        """End the page's stream, whatever waits in it."""
        self.is_open = False
        while not self._events.empty():
            self._events.get_nowait()
        self._events.put_nowait(None)

    def events(self) -> AsyncGenerator[Event | None, None]:
        """Yield the events as they come, and None after 15 s of silence, until the page is closed."""
        return paced(self._queued(), _KEEP_ALIVE_S)

    async def _queued(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event


class LivePages:
    """All open pages, by principal.

    :param log: a structlog logger
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._pages: dict[LivePage, None] = {}
        self.cut_off = 0
        """How many pages were cut off because they read too slowly."""

    def __len__(self) -> int:
        return len(self._pages)

    def open(self, principal: str) -> LivePage:
        """Add a page of a principal."""
        if len(self._pages) >= PAGES:
            oldest = next(iter(self._pages))
            self.remove(oldest)
        page = LivePage(principal)
        self._pages[page] = None
        return page

    def remove(self, page: LivePage) -> None:
        """Forget a page."""
        self._pages.pop(page, None)
        page.close()

    def push(self, event: Event, principal: str | None = None) -> int:
        """Give an event to the pages of a principal, or to all; return how many took it."""
        taken = 0
        for page in list(self._pages):
            if principal is None or page.principal == principal:
                if page.push(event):
                    taken += 1
                else:
                    self.cut_off += 1
                    self._log.warning("a page reads too slowly and is cut off", cut_off=self.cut_off)
                    self.remove(page)
        return taken

    def close(self) -> None:
        """End the streams of all pages."""
        for page in list(self._pages):
            self.remove(page)
