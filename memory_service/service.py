"""The memory service on the bus: what it answers, and whom it tells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import structlog

from homeagent_sdk.bus.abc import BusPeer, CallContext
from homeagent_sdk.errors import HomeAgentError
from memory_service.context.likeness import Likeness
from memory_service.context.requests import parse_window, window_body
from memory_service.context.window import ContextWindow
from memory_service.fields import Fields
from memory_service.model import CONTEXT, DOCUMENT, Event
from memory_service.recall.recall import Recall
from memory_service.requests import parse_append, parse_recall, parse_search, recalled_body
from memory_service.store.abc import Store
from memory_service.tools import ToolRegistry
from memory_service.tools.documents import document_tools
from memory_service.tools.graph import KnownFacts, graph_tools
from memory_service.vectors.keeper import VectorKeeper
from memory_service.words.segmenter import Segmenter

_PATIENCE_S = 20.0
"""How long an operator's question waits for an encoder that loads, or for the questions before it."""


class MemoryService:
    """Serves ``memory.append``, ``recall``, ``window``, ``search``, ``stats``, ``health`` and ``snapshot``.

    Who may call what is the hub's to decide; that nobody sees another's events is decided here and in the store.
    """

    def __init__(self, peer: BusPeer, store: Store, segmenter: Segmenter, keeper: VectorKeeper | None = None) -> None:
        self._peer = peer
        self._store = store
        self._segmenter = segmenter
        self._keeper = keeper
        self._recall = Recall(store, segmenter, keeper)
        self._window = ContextWindow(store, Likeness(store, segmenter, keeper))
        self._tools = ToolRegistry(peer)
        facts = KnownFacts(store, segmenter)
        self._tools.add(graph_tools(store, self._recall, segmenter, self._wrote))
        self._tools.add(document_tools(store, self._recall, self._returned, self._wrote, facts))
        self._stored: list[Callable[[], None]] = [] if keeper is None else [keeper.notify]
        self._log = structlog.get_logger("memory_service")

    def on_stored(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever a new event or note was stored."""
        self._stored.append(told)

    def serve(self) -> None:
        """Register the methods; call it before the peer starts."""
        self._peer.serve("memory.append", self.append)
        self._peer.serve("memory.recall", self.recall)
        self._peer.serve("memory.window", self.window)
        self._peer.serve("memory.search", self.search)
        self._peer.serve("memory.stats", self.stats)
        self._peer.serve("memory.health", self.health)
        self._peer.serve_stream("memory.snapshot", self.snapshot)
        self._tools.serve()

    async def append(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Store an event; ``stored`` is False only if it asked not to be remembered.

        Repeating an event that is stored already succeeds and changes nothing.
        """
        event = parse_append(body)
        if event is None:
            return {"stored": False}
        if await self._store.events.append(event):
            self._wrote()
            await self._tell(event)
        return {"stored": True}

    async def recall(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Find what belongs to a question, out of what the whole audience may see."""
        request = parse_recall(body)
        recalled = await self._recall.recall(
            request.query,
            request.audience,
            exclude=request.exclude,
            limit=request.limit,
            budget_tokens=request.budget_tokens,
        )
        return recalled_body(recalled)

    async def window(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Choose what a conversation is shown, and move what has no place in its window into documents."""
        window = await self._window.make(parse_window(body))
        if window.archived:
            moved = {"count": window.archived, "from": CONTEXT, "to": DOCUMENT, "documents": list(window.documents)}
            await self._publish("memory.migrated", moved)
        return window_body(window)

    async def search(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Find events for the operator: of everybody, or as one principal would see them."""
        request = parse_search(body)
        audience = None if request.principal is None else (request.principal,)
        recalled = await self._recall.recall(request.query, audience, limit=request.limit, patience_s=_PATIENCE_S)
        return recalled_body(recalled)

    async def stats(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Count what there is."""
        return asdict(await self._store.upkeep.stats())

    async def health(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Say how the service is, without touching the disk."""
        vectors = None if self._keeper is None else self._keeper.health()
        return {**self._store.health(), "dictionary_loaded": self._segmenter.is_loaded, "vectors": vectors}

    async def snapshot(self, body: Any, context: CallContext) -> AsyncIterator[dict[str, Any]]:
        """Freeze and copy the store for a backup; the copy is there until the caller closes the stream."""
        async with aclosing(self._store.backup.hold(Fields(body).name("backup"))) as items:
            async for item in items:
                yield item

    def _wrote(self) -> None:
        for told in self._stored:
            told()

    async def _returned(self, ids: Sequence[str]) -> None:
        await self._publish("memory.migrated", {"count": len(ids), "from": DOCUMENT, "to": CONTEXT, "documents": []})

    async def _tell(self, event: Event) -> None:
        await self._publish("memory.appended", {"id": event.id, "channel": event.channel, "time": event.time})

    async def _publish(self, topic: str, payload: dict[str, Any]) -> None:
        try:
            await self._peer.publish(topic, payload)
        except HomeAgentError as error:
            # It is stored: that it could not be announced must not make the caller believe otherwise.
            self._log.warning("not announced", topic=topic, **payload, error=str(error))
