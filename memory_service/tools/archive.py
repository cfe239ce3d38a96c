"""What the tools that search the archive share: what is worth showing, and how it comes back into the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memory_service.model import CONTEXT, Event, Hit
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.tools.registry import Asking
from memory_service.tools.writing import counted, moment

NOT_PROOF: Final = "That does not mean that it never happened: try other words, or a name or a day that it had."
_WORTH: Final = 0.4
"""What a find must be worth at least, as a share of the best one's score."""

Returned = Callable[[Sequence[str]], Awaitable[None]]
"""Is told the ids of events that are in the context again."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What became of events that were to be shown.

    :ivar present: those that are still stored, whatever happened since they were found
    :ivar moved: the ids of those that came back into the context
    """

    present: Mapping[str, Event]
    moved: tuple[str, ...]

    def receipt(self, *, with_ids: bool = False) -> str:
        """Say in one line what is in the context again; nothing if nothing came back."""
        if not self.moved:
            return ""
        which = counted(len(self.moved), "event")
        if with_ids:
            which = ", ".join(f"{id} of {moment(self.present[id].time)}" for id in self.moved if id in self.present)
        return f"[back in the context at their own times: {which}]"


class Archive:
    """Finds things and brings them back.

    :param returned: told of what came back
    """

    def __init__(self, store: Store, recall: Recall, returned: Returned) -> None:
        self._store = store
        self._recall = recall
        self._returned = returned

    async def find(
        self, query: str, audience: Collection[str], limit: int, wanted: Callable[[Hit], bool] = lambda hit: True
    ) -> list[Hit]:
        """Return what is worth showing out of what the audience may see, best first; empty if there is no record.

        :param limit: so many finds are looked at
        :param wanted: which of them count
        """
        recalled = await self._recall.recall(query, audience, limit=limit)
        hits = [] if recalled.no_record else list(filter(wanted, recalled.hits))
        enough = hits[0].score * _WORTH if hits else 0.0
        return [hit for hit in hits if hit.score >= enough]

    async def bring_back(self, events: Sequence[Event], asking: Asking) -> Confirmed:
        """Move the person's own archived events into the context, all in one commit, so that none is lost on the way.

        What is somebody else's, though shared, is shown and stays where its owner has it.
        """
        own = [event.id for event in events if event.tier != CONTEXT and event.principal == asking.principal]
        moved = await self._store.documents.bring_back(own) if own else ()
        if moved:
            await self._returned(moved)
        present = await self._store.events.get([event.id for event in events])
        return Confirmed({event.id: event for event in present}, moved)
