"""coldcontext_query: single archived events of the person, found and brought back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memory_service.fields import Fields
from memory_service.model import Event, Hit
from memory_service.recall.candidates import EVENT
from memory_service.store.abc import Store
from memory_service.tools.archive import NOT_PROOF, Archive
from memory_service.tools.arguments import moment_of, query_of
from memory_service.tools.registry import Asking, MemoryTool
from memory_service.tools.writing import Budget, counted, event_text, joined

_MOST_EVENTS: Final = 20
_LOOKED_AT: Final = 100
_LOOKED_AT_FILTERED: Final = 1_000
"""Where only some days or one channel are wanted, so many finds are sifted."""


@dataclass(frozen=True, slots=True)
class _Filter:
    since: float | None
    until: float | None
    channel: str | None

    @property
    def is_set(self) -> bool:
        return self != _Filter(None, None, None)

    def lets_through(self, hit: Hit) -> bool:
        return (
            hit.kind == EVENT
            and (self.since is None or hit.time >= self.since)
            and (self.until is None or hit.time < self.until)
            and self.channel in (None, hit.channel)
        )


class ColdContextTool:
    """The tool."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self._store = store
        self._archive = archive

    def tool(self) -> MemoryTool:
        """Return it for the registry."""
        day = {"type": "string", "description": "date or time, ISO 8601"}
        return MemoryTool(
            "coldcontext_query",
            "Search single archived messages of this person, of some days or one channel if wanted; brings them back.",
            {
                "query": {"type": "string"},
                "top_k": {"type": "integer", "minimum": 1, "maximum": _MOST_EVENTS, "default": 5},
                "since": day,
                "until": day,
                "channel": {"type": "string"},
            },
            self.run,
            required=("query",),
            parallel_safe=True,
            idempotent=True,
        )

    async def run(self, arguments: Fields, asking: Asking) -> str:
        """Answer a call; see :data:`memory_service.tools.registry.Run`."""
        query, top_k = query_of(arguments), arguments.number("top_k", 5, 1, _MOST_EVENTS)
        wanted = _filter_of(arguments)
        limit = _LOOKED_AT_FILTERED if wanted.is_set else _LOOKED_AT
        hits = await self._archive.find(query, asking.audience, limit, wanted.lets_through)
        events = await self._own([hit.id for hit in hits], asking)
        budget = Budget()
        shown = [event for event in events[:top_k] if budget.takes(event_text(event, with_id=True))]
        confirmed = await self._archive.bring_back(shown, asking)
        if not confirmed.present:
            within = " within these limits" if wanted.is_set else ""
            return f"No archived message of this person matches {query!r}{within}. {NOT_PROOF}"
        left_out = len(events[:top_k]) - len(shown)
        texts = [event_text(event, with_id=True) for event in shown if event.id in confirmed.present]
        more = f"{counted(left_out, 'message')} more did not fit." if left_out else ""
        return joined([*texts, more, confirmed.receipt(with_ids=True)])

    async def _own(self, ids: Sequence[str], asking: Asking) -> list[Event]:
        """Return the person's own of these events, in this order."""
        stored = {event.id: event for event in await self._store.events.get(ids)}
        return [stored[id] for id in ids if id in stored and stored[id].principal == asking.principal]


def _filter_of(arguments: Fields) -> _Filter:
    since = moment_of(arguments, "since", is_end=False)
    until = moment_of(arguments, "until", is_end=True)
    if since is not None and until is not None and since >= until:
        raise arguments.wrong("until", "must be later than since")
    return _Filter(since, until, arguments.name("channel") if arguments.has("channel") else None)
