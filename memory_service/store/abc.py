"""What the memory service asks of a store. Any other store must pass the same tests (``tests/memory_service``)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from memory_service.model import Event, Search, Stats, Term


class EventStore(Protocol):
    """Keeps events and finds them by their words.

    Made and opened by ``__main__``, called by :mod:`memory_service.service` and :mod:`memory_service.recall` from one
    event loop, by any number of tasks at once. No method blocks the loop. Every method may raise
    :class:`~homeagent_sdk.errors.Unavailable` if the medium fails (full, broken, gone), with its path and what to do,
    and :class:`~homeagent_sdk.errors.Overloaded` if too many requests wait already.
    """

    async def append(self, event: Event) -> bool:
        """Store an event, with its words and with who may see it, all or nothing.

        Called once for each finished turn, and again when the caller does not know whether it succeeded.

        :returns: True if it is new, False if an event with this id was there already (which is then left as it is);
            in both cases it is safe on the medium before this returns
        """

    async def find(
        self, terms: Sequence[Term], audience: Collection[str] | None, exclude: Collection[str], limit: int
    ) -> Search:
        """Find the events that have at least one of the terms, best first; never waits for a writer.

        :param audience: only events that every one of these principals may see; None for all events, which only an
            operator may ask for; never empty
        :param exclude: ids of events to leave out
        :param limit: how many candidates at most
        """

    async def stats(self) -> Stats:
        """Count what there is."""

    def health(self) -> dict[str, object]:
        """Say how the store is, at once and without touching the medium: ``state`` (running or failed), ``reason``."""

    async def close(self) -> None:
        """Finish the appends that were accepted, and close; called once, last."""
