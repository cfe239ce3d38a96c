"""Media are files beside the database: they too are there when they were acknowledged, and gone when forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from memory_service.graph.model import Holder
from memory_service.store import media
from memory_service.store.sqlite import SqliteStore
from tests.chaos.memory import invented
from tests.chaos.memory.power_cut import Disk, system_calls

pytestmark = pytest.mark.chaos

SEEDS = range(16)


async def left(
    folder: Path, seed: int, *, is_dropped: bool, before_drop: Callable[[], None] = lambda: None
) -> bytes | None:
    """Store a picture, perhaps drop it again, take the power away, and return its bytes; None if there are none."""
    disk = Disk()
    with system_calls(disk):
        store = SqliteStore.open(folder / str(seed) / "memory.db")
        await store.events.append(invented.event(1))
        holder = Holder("event", invented.event_id(1))
        block = await store.media.put(invented.picture(seed), "image/png", holder, "a picture")
        before_drop()
        if is_dropped:
            await store.media.drop([block.id])
        await store.close()
        disk.cut(random.Random(seed))
    file = folder / str(seed) / "media" / block.digest[:2] / block.digest
    return file.read_bytes() if file.exists() else None


async def test_what_was_stored_is_whole(tmp_path: Path) -> None:
    for seed in SEEDS:
        assert await left(tmp_path, seed, is_dropped=False) == invented.picture(seed)


async def test_what_was_dropped_does_not_come_back(tmp_path: Path) -> None:
    for seed in SEEDS:
        assert await left(tmp_path, seed, is_dropped=True) is None


async def test_without_a_sync_of_the_folder_both_would_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_syncing() -> None:
        monkeypatch.setattr(media, "flush", lambda folder: None)

    back = []
    for seed in SEEDS:
        back.append(await left(tmp_path / "dropped", seed, is_dropped=True, before_drop=stop_syncing))
        monkeypatch.undo()
    assert any(back)
    stop_syncing()
    assert None in [await left(tmp_path / "stored", seed, is_dropped=False) for seed in SEEDS]
