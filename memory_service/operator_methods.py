"""What the operator asks of the memory: import, look at one item, compare with the journal, forget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from homeagent_sdk.bus.abc import BusPeer, CallContext
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import NotFound
from memory_service.fields import Fields
from memory_service.forgetting import Forgetting
from memory_service.importing import Importing
from memory_service.model import Report, Selection
from memory_service.requests import checked_time
from memory_service.store.abc import Store


class OperatorMethods:
    """Serves ``memory.import``, ``show``, ``verify``, ``repair``, ``known``, ``forget``: for the operator alone."""

    def __init__(self, peer: BusPeer, store: Store, importing: Importing, forgetting: Forgetting) -> None:
        self._peer = peer
        self._store = store
        self._importing = importing
        self._forgetting = forgetting

    def serve(self) -> None:
        """Register the methods; call it before the peer starts."""
        self._peer.serve("memory.import", self.take)
        self._peer.serve("memory.show", self.show)
        self._peer.serve("memory.known", self.known)
        self._peer.serve_stream("memory.verify", self.verify)
        self._peer.serve("memory.repair", self.repair)
        self._peer.serve("memory.forget", self.forget)

    async def take(self, body: Any, context: CallContext) -> dict[str, int]:
        """Store events that happened elsewhere; see :meth:`memory_service.importing.Importing.take`."""
        return await self._importing.take(body)

    async def show(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Return everything that is stored about an item.

        :raises NotFound: there is none with this id, or it was forgotten
        """
        id = Fields(body).name("id")
        found = await self._store.upkeep.describe(id)
        if found is not None:
            return dict(found)
        if await self._store.forgetting.forgotten([id]):
            raise NotFound(text("memory.was_forgotten", id=id), field="id")
        raise NotFound(text("memory.no_such_item", id=id), field="id", hint=text("memory.no_such_item_hint"))

    async def verify(self, body: Any, context: CallContext) -> AsyncIterator[dict[str, Any]]:
        """Look at everything that is stored: yields how far it is, and the report last."""
        loop, news, done = asyncio.get_running_loop(), asyncio.Event(), (0, 0)

        def tell(checked: int, of: int) -> None:
            nonlocal done
            done = (checked, of)
            loop.call_soon_threadsafe(news.set)

        verifying = asyncio.create_task(self._store.upkeep.verify(tell))
        verifying.add_done_callback(lambda _: news.set())
        try:
            while not verifying.done():
                await news.wait()
                news.clear()
                yield {"checked": done[0], "of": done[1]}
            yield _report_body(await verifying)
        finally:
            verifying.cancel()
            await asyncio.gather(verifying, return_exceptions=True)

    async def repair(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Make anew what is only derived from what is stored, and drop what belongs to nothing."""
        return {"repaired": dict(await self._store.upkeep.repair())}

    async def known(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Say which of some ids no event has; those that were forgotten are told apart."""
        ids = Fields(body).names("ids")
        missing = await self._store.events.missing(ids)
        forgotten = await self._store.forgetting.forgotten(missing)
        return {"missing": [id for id in missing if id not in forgotten], "forgotten": sorted(forgotten)}

    async def forget(self, body: Any, context: CallContext) -> dict[str, Any]:
        """Forget what is selected, or say with ``dry_run`` what that would be; see :class:`.forgetting.Forgetting`."""
        fields = Fields(body)
        selection = parse_selection(fields)
        if fields.take("dry_run", bool, False):
            return await self._forgetting.preview(selection)
        return await self._forgetting.forget(selection)


def _report_body(report: Report) -> dict[str, Any]:
    checks = [
        {"name": check.name, "ok": check.ok, "count": check.count, "examples": list(check.examples)}
        for check in report.checks
    ]
    return {"ok": report.ok, "checks": checks}


def parse_selection(fields: Fields) -> Selection:
    """Return what is to be forgotten.

    :raises Invalid: nothing is selected, or a condition is not one
    """
    ids = fields.names("ids")
    if ids:
        return Selection(ids=ids)
    after, before = (checked_time(fields, name) if fields.has(name) else None for name in ("after", "before"))
    principal = fields.name("principal") if fields.has("principal") else None
    if principal is None and after is None and before is None:
        raise fields.wrong("ids", "are missing, and so are principal, after and before: say what to forget")
    return Selection(principal=principal, after=after, before=before)
