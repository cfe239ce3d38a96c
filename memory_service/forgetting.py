"""Forgetting, in every place: the kernel's journal first, then the store, the readable log, media, what files hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import structlog

from homeagent_sdk.bus.abc import BusPeer
from homeagent_sdk.errors import HomeAgentError
from memory_service.conversation_log import ConversationLog
from memory_service.model import Event, Selected, Selection
from memory_service.store.abc import Store

MOST_IDS: Final = 1_000
_EXAMPLES: Final = 200
_SHOWN: Final = 5
_SHOWN_CHARACTERS: Final = 200
_KERNEL_S: Final = 3_600.0
_log = structlog.get_logger("forgetting")


class Forgetting:
    """Forgets what is selected, so that no file of this system holds it any more.

    The order matters. The journal comes first: it would tell the memory again what it still has. What lies outside the
    store comes after it, since the store keeps, until all is done, that something is to be done. Every step may be
    repeated, so that a second call, or the next start, finishes what a crash interrupted.
    """

    def __init__(self, peer: BusPeer, store: Store, log: ConversationLog) -> None:
        self._peer = peer
        self._store = store
        self._log = log
        self._turn = asyncio.Lock()
        self._told: list[Callable[[str, Collection[int]], None]] = []

    def on_forgotten(self, told: Callable[[str, Collection[int]], None]) -> None:
        """Call ``told`` with a kind (event, document, relation) and the numbers of what was forgotten."""
        self._told.append(told)

    async def preview(self, selection: Selection) -> dict[str, Any]:
        """Say what would be forgotten; ``complete`` is whether nothing is left of what was forgotten before."""
        journal = await self._journal(selection, dry_run=True)
        selected = await self._store.forgetting.select(selection, _EXAMPLES)
        settled = await self._store.forgetting.is_settled()
        return {**_body(selected), "receipts": {"journal": journal}, "complete": settled}

    async def forget(self, selection: Selection) -> dict[str, Any]:
        """Forget what is selected, and say for every store what it did.

        :raises Unavailable: a store cannot be reached; what was forgotten until then stays so
        """
        async with self._turn:
            selected = await self._store.forgetting.select(selection, _EXAMPLES)
            journal = await self._journal(selection, dry_run=False)
            deleted = await self._store.forgetting.delete(selection)
            rest = await self._finish()
            for kind, numbers in deleted.numbers.items():
                for told in self._told:
                    told(kind, numbers)
        counts = deleted.counts
        receipts = {"journal": journal, "memory": {name: count for name, count in counts.items() if count}, **rest}
        complete = journal["erased"] and not journal["unfinished"] and rest["files"]["erased"]
        body = {**_body(selected), "count": counts["events"], "notes": counts["notes"]}
        return {**body, "relations": counts["relations"], "receipts": receipts, "complete": complete}

    async def finish(self) -> None:
        """Finish what a crash interrupted, if there is anything; called once, after the start."""
        try:
            if not await self._store.forgetting.is_settled():
                async with self._turn:
                    rest = await self._finish()
                _log.info("forgetting finished", **rest)
        except (HomeAgentError, OSError) as error:
            _log.warning("forgetting is not finished; it goes on after the next start", reason=str(error))

    async def _finish(self) -> dict[str, dict[str, Any]]:
        """Do all that comes after the rows are gone."""
        forgetting = self._store.forgetting
        lines = await self._log.forget(forgetting.forgotten)
        digests = await forgetting.media()
        files = await self._store.media.discard(digests)
        erased = await forgetting.erase()
        if erased:
            await forgetting.settle()
        return {"conversation_log": {"lines": lines}, "media": {"files": files}, "files": {"erased": erased}}

    async def _journal(self, selection: Selection, *, dry_run: bool) -> dict[str, Any]:
        """Have the kernel forget the turns, or count them."""
        total: dict[str, Any] = {"turns": 0, "unfinished": 0, "earlier": 0, "erased": True}
        for page in await self._pages(selection):
            answer = await self._peer.call("kernel.forget", {**page, "dry_run": dry_run}, timeout_s=_KERNEL_S)
            for name in ("turns", "unfinished", "earlier"):
                total[name] += answer[name]
            total["erased"] = total["erased"] and answer.get("erased", True)
        return total

    async def _pages(self, selection: Selection) -> list[dict[str, Any]]:
        """Return the requests to the kernel: it knows turns and their conversations, but no archives."""
        if not selection.ids:
            return [{"principal": selection.principal, "after": selection.after, "before": selection.before}]
        lanes = await self._store.forgetting.lanes(selection.ids)
        ids = sorted({*selection.ids, *lanes})
        pages = []
        for first in range(0, len(ids), MOST_IDS):
            page = ids[first : first + MOST_IDS]
            pages.append({"ids": page, "lanes": [list(lane) for lane in _unique(lanes, page)]})
        return pages


def _unique(lanes: Mapping[str, tuple[str, str, str]], ids: Sequence[str]) -> list[tuple[str, str, str]]:
    return list(dict.fromkeys(lanes[id] for id in ids if id in lanes))


def _body(selected: Selected) -> dict[str, Any]:
    return {
        "count": selected.events,
        "notes": selected.notes,
        "relations": selected.relations,
        "ids": [event.id for event in selected.examples],
        "examples": [_example(event) for event in selected.examples[:_SHOWN]],
    }


def _example(event: Event) -> dict[str, Any]:
    shown = event.input[:_SHOWN_CHARACTERS]
    return {"id": event.id, "time": event.time, "speaker": event.speaker, "text": shown}
