"""A store on a fresh disk, a service on a bus in memory, and a quick way to make events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.service import MemoryService
from memory_service.store.abc import Store
from memory_service.store.sqlite import SqliteStore
from memory_service.words.segmenter import Segmenter


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEAGENT_LANG", "en")


@pytest.fixture(scope="session")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Segmenter:
    return Segmenter(tmp_path_factory.mktemp("dictionary"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = SqliteStore.open(tmp_path / "memory.db")
    yield store
    await store.close()


@pytest.fixture
def bus() -> LocalBus:
    return LocalBus()


@pytest.fixture
async def kernel(bus: LocalBus, store: Store, segmenter: Segmenter) -> LocalPeer:
    """Return the caller's end of a bus on which a memory service answers."""
    MemoryService(bus.peer("memory"), store, segmenter).serve()
    return bus.peer("kernel", "kernel")
