"""Facts for tests, written in one line, and short questions about them."""

from __future__ import annotations

from typing import Any

from memory_service.graph.model import Fact, GraphQuestion, Recollection, Telling
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON

OWNER = ("owner",)


def told(*sees: str, **more: Any) -> Telling:
    """Make the telling of a fact that ``sees`` may see, ``owner`` if nobody is named; an empty name: everybody."""
    visible_to = tuple(filter(None, sees or OWNER))
    fields: dict[str, Any] = {"principal": (*visible_to, "owner")[0], "time": NOON, "origin": "model", **more}
    return Telling(visible_to=visible_to, shared=not visible_to, **fields)


def facts(*statements: str, **more: Any) -> list[Fact]:
    """Make facts of ``subject | relation | object | sentence``."""
    return [Fact(*(part.strip() for part in statement.split("|")), **more) for statement in statements]


async def commit(store: Store, *statements: str, telling: Telling | None = None, **more: Any) -> tuple[str, ...]:
    committed = await store.graph.commit(facts(*statements, **more), telling or told())
    assert not committed.refused
    return committed.new


async def ask(store: Store, *keywords: str, audience: tuple[str, ...] | None = OWNER, **more: Any) -> Recollection:
    return await store.graph.recall(GraphQuestion(keywords, **{"relations": 50, **more}), audience)


async def said(store: Store, *keywords: str, **more: Any) -> list[str]:
    return [relation.statement for relation in (await ask(store, *keywords, **more)).relations]
