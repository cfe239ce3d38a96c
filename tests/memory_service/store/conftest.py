"""The stores that the contract is tested on. Another one is added here, and must pass the same tests unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_service.store.abc import Store
from memory_service.store.sqlite import SqliteStore

STORES = (SqliteStore,)


@pytest.fixture(params=STORES, ids=lambda kind: kind.__name__)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """Open a store of each kind on a fresh disk."""
    store: Store = request.param.open(tmp_path / "memory.db")
    yield store
    await store.close()
