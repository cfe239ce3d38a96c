"""The graph on SQLite: facts, who may see them, and the ways to find and change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from homeagent_sdk.errors import Invalid
from memory_service.graph.model import (
    MAX_FACTS,
    Changed,
    Committed,
    Corrected,
    Correction,
    Criteria,
    Fact,
    FactCandidate,
    GraphQuestion,
    GraphStats,
    Recollection,
    Relation,
    Snapshot,
    Telling,
)
from memory_service.model import Term
from memory_service.store import graph_changes, graph_commit, graph_recall
from memory_service.store.database import Database


class SqliteGraph:
    """Implements :class:`memory_service.store.graph_abc.GraphStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def commit(self, facts: Sequence[Fact], telling: Telling) -> Committed:
        """Store facts; see :class:`memory_service.store.graph_abc.GraphStore`."""
        _check_count(facts)
        return await self._database.write(lambda connection: graph_commit.commit(connection, facts, telling))

    async def to_graph(self, document: str, facts: Sequence[Fact]) -> Committed:
        """Move a document into the graph; see :class:`memory_service.store.graph_abc.GraphStore`."""
        _check_count(facts)
        return await self._database.write(
            lambda connection: graph_commit.to_graph(connection, document, facts), bulk=True
        )

    async def recall(self, question: GraphQuestion, audience: Collection[str] | None) -> Recollection:
        """Answer a question; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.read(lambda connection: graph_recall.recall(connection, question, audience))

    async def find_facts(
        self, terms: Sequence[Term], audience: Collection[str] | None, limit: int
    ) -> tuple[FactCandidate, ...]:
        """Find facts by words; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.read(lambda connection: graph_recall.find(connection, terms, audience, limit))

    async def facts_by_number(
        self, numbers: Collection[int], audience: Collection[str] | None
    ) -> Mapping[int, Relation]:
        """Return facts; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.read(lambda connection: graph_recall.by_number(connection, numbers, audience))

    async def snapshot(self, name: str, audience: Collection[str] | None, limit: int = 20) -> Snapshot | None:
        """Say what is on record of an entity; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.read(lambda connection: graph_recall.snapshot(connection, name, audience, limit))

    async def introspect(self, audience: Collection[str] | None) -> GraphStats:
        """Count; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.read(lambda connection: graph_recall.stats(connection, audience))

    async def merge(self, source: str, target: str, audience: Collection[str]) -> Changed:
        """Make two entities one; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.write(lambda connection: graph_changes.merge(connection, source, target, audience))

    async def edit(self, correction: Correction, telling: Telling, audience: Collection[str]) -> Corrected:
        """Replace a fact; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.write(
            lambda connection: graph_changes.edit(connection, correction, telling, audience)
        )

    async def delete_entity(self, name: str, audience: Collection[str], *, hard: bool = False) -> Changed:
        """Delete an entity; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.write(
            lambda connection: graph_changes.delete_entity(connection, name, audience, hard=hard)
        )

    async def purge(self, criteria: Criteria, audience: Collection[str], *, hard: bool = False) -> Changed:
        """Delete facts; see :class:`memory_service.store.graph_abc.GraphStore`."""
        return await self._database.write(
            lambda connection: graph_changes.purge(connection, criteria, audience, hard=hard)
        )


def _check_count(facts: Sequence[Fact]) -> None:
    if len(facts) > MAX_FACTS:
        raise Invalid(f"{len(facts)} facts are too many at once", field="facts", hint=f"give at most {MAX_FACTS}")
