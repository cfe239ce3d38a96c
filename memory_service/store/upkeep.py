"""The store as a whole: what is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import apsw

from memory_service.model import Report, Stats
from memory_service.store.database import Database
from memory_service.store.describe import describe
from memory_service.store.repair import repair
from memory_service.store.verify import verify


class SqliteUpkeep:
    """Implements :class:`memory_service.store.abc.Upkeep`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stats(self) -> Stats:
        """Count; see :class:`memory_service.store.abc.Upkeep`."""
        return await self._database.read(self._count)

    async def describe(self, id: str) -> Mapping[str, Any] | None:
        """Describe an item; see :class:`memory_service.store.abc.Upkeep`."""
        return await self._database.read(lambda connection: describe(connection, id))

    async def verify(self, progress: Callable[[int, int], None]) -> Report:
        """Look at everything; see :class:`memory_service.store.abc.Upkeep`."""
        return await verify(self._database.path, progress)

    async def repair(self) -> Mapping[str, int]:
        """Make anew what is derived; see :class:`memory_service.store.abc.Upkeep`."""
        return await repair(self._database)

    def _count(self, connection: apsw.Connection) -> Stats:
        tiers = dict(connection.execute("SELECT tier, count(*) FROM event GROUP BY tier"))
        oldest, newest = connection.execute("SELECT min(time), max(time) FROM event").get
        path = self._database.path
        files = (path, path.with_name(f"{path.name}-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return Stats(sum(tiers.values()), tiers, size, oldest, newest)
