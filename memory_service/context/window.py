"""``memory.window``: makes a conversation's window anew when it is full, and moves what has no place into documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memory_service.context.choice import Lane, Limits, Sides, choose, is_full, slices, take_sides
from memory_service.context.likeness import Likeness
from memory_service.model import Event, InContext
from memory_service.store.abc import Store

MOST_CONSIDERED: Final = 2_000
"""So many of a person's newest events compete; older ones of the context do when these have become fewer."""

MOST_MOVED: Final = 512
"""So many events leave the context in one call; the rest follows with the next, so that no turn waits for long."""

_SLICE_EVENTS: Final = 64
_SLICE_TOKENS: Final = 64_000
"""What one transaction moves: a live append waits for one of them at most."""

_INPUTS_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """What ``memory.window`` asks.

    :ivar audience: who will read the answer; only what all of them may see is shown or moved. Never empty
    :ivar query: the current input
    :ivar kept: ids of the lane's last turns, which the caller shows by itself; the store need not have them yet
    """

    lane: Lane
    principal: str
    audience: tuple[str, ...]
    query: str
    kept: frozenset[str]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Window:
    """The answer.

    :ivar events: whole, oldest first, without those that the caller keeps
    :ivar archived: how many events left the context
    :ivar documents: the ids of the documents that they are in now
    """

    events: tuple[Event, ...]
    archived: int
    documents: tuple[str, ...]


class ContextWindow:
    """Makes windows."""

    def __init__(self, store: Store, likeness: Likeness) -> None:
        self._store = store
        self._likeness = likeness

    async def make(self, request: WindowRequest) -> Window:
        """Choose what the conversation is shown; what is neither shown nor protected moves into documents.

        May be repeated: as long as nothing is added, there is nothing more to move. What was moved is safe when this
        returns; if it breaks off, some events have moved and the others have not.

        :raises Unavailable: the store cannot be read or written
        """
        considered = await self._store.events.in_context(request.principal, request.audience, MOST_CONSIDERED)
        sides = take_sides(considered, request.lane, request.kept, request.limits)
        query = request.query.strip() or await self._last_input(considered, request)
        likeness = await self._likeness.of(query, sides.competing) if query else {}
        chosen = choose(sides, likeness, len(request.kept), request.limits)
        # Without an input there is no reason to let one go rather than another.
        leaving = self._leaving(sides, chosen, request) if query else []
        documents = await self._move(leaving, request.principal)
        shown = await self._store.events.by_number([event.number for event in chosen], request.audience)
        events = sorted(shown.items(), key=lambda item: (item[1].time, item[0]))
        return Window(tuple(event for _, event in events), sum(documents.values()), tuple(documents))

    async def _last_input(self, considered: Sequence[InContext], request: WindowRequest) -> str:
        """Return what a person said last in this conversation, empty if nobody has."""
        own = [event.number for event in considered if (event.channel, event.conversation) == request.lane]
        events = await self._store.events.by_number(own[:_INPUTS_TRIED], request.audience)
        newest_first = sorted(events.items(), key=lambda item: (-item[1].time, -item[0]))
        said = (event.input.strip() for _, event in newest_first if event.origin == "user")
        return next(filter(None, said), "")

    def _leaving(self, sides: Sides, chosen: Sequence[InContext], request: WindowRequest) -> list[InContext]:
        """Return what leaves the context now, oldest first, so that a document is of one time."""
        if not is_full(sides, len(request.kept), request.limits):
            return []
        shown = {event.number for event in chosen}
        leaving = [event for event in sides.movable if event.number not in shown]
        return sorted(leaving, key=lambda event: (event.time, event.number))[:MOST_MOVED]

    async def _move(self, events: Sequence[InContext], principal: str) -> dict[str, int]:
        """Move events into documents, slice by slice; returns how many events each document has."""
        made: dict[str, int] = {}
        for piece in slices(events, _SLICE_EVENTS, _SLICE_TOKENS):
            documents = await self._store.documents.archive([event.id for event in piece], principal)
            made |= {document.id: len(document.events) for document in documents}
        return made
