"""kernel.backup: copies of all databases, for the ``homeagent`` command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from homeagent_sdk.bus import BusPeer, CallContext
from kernel.backup import Backup
from kernel.methods.body import as_map, text_field


class BackupMethods:
    """Has a backup made; the caller collects it before it closes the stream."""

    def __init__(self, backup: Backup) -> None:
        self._backup = backup

    def serve(self, bus: BusPeer) -> None:
        """Answer the method."""
        bus.serve_stream("kernel.backup", self.backup)

    async def backup(self, body: Any, call: CallContext) -> AsyncIterator[Any]:
        """Make the copies and keep them until the caller closes the stream."""
        name = text_field(as_map(body), "backup", limit=64)
        seconds = max(0.0, call.deadline - asyncio.get_running_loop().time())
        async with aclosing(self._backup.run(name, seconds)) as items:
            async for item in items:
                yield item
