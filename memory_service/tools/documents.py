"""doc_query: archives, notes and facts that belong to a question; what was archived of it comes back."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from memory_service.fields import Fields
from memory_service.model import CONTEXT, Document, Event, Hit
from memory_service.recall.candidates import EVENT, NOTE
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.tools.archive import NOT_PROOF, Archive, Confirmed, Returned
from memory_service.tools.arguments import query_of
from memory_service.tools.cold_context import ColdContextTool
from memory_service.tools.notes import NoteTool
from memory_service.tools.registry import Asking, MemoryTool
from memory_service.tools.writing import Budget, counted, days, event_text, joined, note_text

_LOOKED_AT: Final = 100
_MOST_DOCUMENTS: Final = 10
_EVENTS_OF_A_DOCUMENT: Final = 5

Snapshots = Callable[[str, Collection[str]], Awaitable[Sequence[str]]]
"""``(query, audience)`` → the facts that hold now about what the query names, as lines; made when it is asked."""


def document_tools(
    store: Store,
    recall: Recall,
    returned: Returned,
    written: Callable[[], None],
    snapshots: Snapshots | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> tuple[MemoryTool, ...]:
    """Return the tools around documents.

    :param returned: told of events that came back into the context
    :param written: called when there is a new note
    :param snapshots: facts about what a query names; None: there are none
    :param wall_clock: seconds since 1970
    """
    archive = Archive(store, recall, returned)
    return (
        DocumentTool(store, archive, snapshots).tool(),
        NoteTool(store, written, wall_clock).tool(),
        ColdContextTool(store, archive).tool(),
    )


@dataclass(slots=True)
class _Source:
    """Where hits are: an archive, a note, or the context, with those of its events that match.

    :ivar document: None for the context
    :ivar texts: what is shown of it, by id
    :ivar left_out: how many matching events did not fit
    """

    document: Document | None
    events: list[Event] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    left_out: int = 0

    def fill(self, budget: Budget) -> None:
        """Choose what is shown of it."""
        if self.document is not None and self.document.kind == NOTE:
            written = {self.document.id: note_text(self.document)}
        else:
            written = {event.id: event_text(event) for event in self.events}
        self.texts = {id: text for id, text in written.items() if budget.takes(text)}
        self.left_out = len(written) - len(self.texts)

    def write(self, present: Mapping[str, Event]) -> str:
        """Write what is shown of it; of events those that are still stored."""
        if self.document is not None and self.document.kind == NOTE:
            return "".join(self.texts.values())
        shown = sorted((each for each in self.events if each.id in self.texts.keys() & present), key=_time)
        if not shown:
            return ""
        head = "In the context already:"
        if self.document is not None:
            more = len(self.document.events) - len(shown)
            rest = f"; {counted(more, 'other event')} of it not shown" if more > 0 else ""
            head = f"Archive of {days(self.document.first_time, self.document.last_time)}{rest}:"
        return "\n".join([head, *(self.texts[event.id] for event in shown)])


class DocumentTool:
    """The tool."""

    def __init__(self, store: Store, archive: Archive, snapshots: Snapshots | None) -> None:
        self._store = store
        self._archive = archive
        self._snapshots = snapshots

    def tool(self) -> MemoryTool:
        """Return it for the registry."""
        return MemoryTool(
            "doc_query",
            "Search the archive of earlier conversations, and notes; brings what it finds back.",
            {
                "query": {"type": "string", "description": "what to look for, in a few words"},
                "top_k": {"type": "integer", "minimum": 1, "maximum": _MOST_DOCUMENTS, "default": 3},
            },
            self.run,
            required=("query",),
            parallel_safe=True,
            idempotent=True,
            always=True,
        )

    async def run(self, arguments: Fields, asking: Asking) -> str:
        """Answer a call; see :data:`memory_service.tools.registry.Run`."""
        query, top_k = query_of(arguments), arguments.number("top_k", 3, 1, _MOST_DOCUMENTS)
        facts = () if self._snapshots is None else await self._snapshots(query, asking.audience)
        hits = await self._archive.find(query, asking.audience, _LOOKED_AT, lambda hit: hit.kind in (EVENT, NOTE))
        sources = await self._sources(hits, top_k)
        budget, known = Budget(), "\n".join(["Known facts:", *facts])
        for source in sources:
            source.fill(budget)
        events = [event for source in sources for event in source.events if event.id in source.texts]
        confirmed = await self._archive.bring_back(events, asking)
        await self._count_reads(sources, confirmed)
        parts = [known if facts and budget.takes(known) else "", *(each.write(confirmed.present) for each in sources)]
        if not any(parts):
            return f"Nothing in the archive or the notes matches {query!r}. {NOT_PROOF}"
        left_out = sum(source.left_out for source in sources)
        more = f"{counted(left_out, 'more match', 'more matches')} did not fit; ask more narrowly." if left_out else ""
        return joined([*parts, more, confirmed.receipt()])

    async def _sources(self, hits: Sequence[Hit], most: int) -> list[_Source]:
        """Return where the hits are, the best first."""
        events = {each.id: each for each in await self._store.events.get([h.id for h in hits if h.kind == EVENT])}
        archives = {event.document for event in events.values() if event.document}
        found = await self._store.documents.get([*archives, *(hit.id for hit in hits if hit.kind == NOTE)])
        documents = {document.id: document for document in found}
        sources: dict[str, _Source] = {}
        for hit in hits:
            event = events.get(hit.id)
            key = hit.id if event is None else event.document or CONTEXT
            if (event is None and key not in documents) or (key not in sources and len(sources) == most):
                continue
            source = sources.setdefault(key, _Source(documents.get(key)))
            if event is not None and len(source.events) < _EVENTS_OF_A_DOCUMENT:
                source.events.append(event)
        return list(sources.values())

    async def _count_reads(self, sources: Sequence[_Source], confirmed: Confirmed) -> None:
        """Count what was read on purpose; where events came back, that is done."""
        read = [
            source.document.id
            for source in sources
            if source.document is not None and source.texts and not source.texts.keys() & set(confirmed.moved)
        ]
        if read:
            await self._store.documents.count_read(read)


def _time(event: Event) -> float:
    return event.time
