"""The store on one SQLite database: a writing thread with group commit, reading threads beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from memory_service.store import events
from memory_service.store.backup import copies_of
from memory_service.store.database import Database
from memory_service.store.documents import SqliteDocuments
from memory_service.store.events import SqliteEvents
from memory_service.store.forget import SqliteForgetting
from memory_service.store.graph import SqliteGraph
from memory_service.store.log_position import SqliteLogPosition
from memory_service.store.media import SqliteMedia
from memory_service.store.scenes import SqliteScenes
from memory_service.store.upkeep import SqliteUpkeep
from memory_service.store.vectors import SqliteVectors


class SqliteStore:
    """Implements :class:`memory_service.store.abc.Store` in one file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.events = SqliteEvents(database)
        self.documents = SqliteDocuments(database)
        self.graph = SqliteGraph(database)
        self.scenes = SqliteScenes(database)
        self.media = SqliteMedia(database, database.path.with_name("media"))
        self.vectors = SqliteVectors(database)
        self.forgetting = SqliteForgetting(database)
        self.log = SqliteLogPosition(database)
        self.upkeep = SqliteUpkeep(database)
        self.backup = copies_of(database.path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the database, making or upgrading it as needed; see :meth:`.database.Database.open`."""
        return cls(Database.open(path, events.prepare))

    def health(self) -> dict[str, object]:
        """Say how the store is; see :class:`memory_service.store.abc.Store`."""
        return self._database.health()

    async def close(self) -> None:
        """Finish and close; see :class:`memory_service.store.abc.Store`."""
        await self._database.close()
