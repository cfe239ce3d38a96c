"""The memory's part of a backup."""

from __future__ import annotations

import sqlite3
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from homeagent_sdk.errors import Invalid
from homeagent_sdk.testing.local_bus import LocalPeer
from memory_service.store.sqlite import SqliteStore
from tests.memory_service.samples import an_append


async def test_a_copy_has_what_was_remembered_before_it_was_frozen_and_nothing_later(
    kernel: LocalPeer, tmp_path: Path
) -> None:
    await kernel.call("memory.append", an_append("t1", "我的自行车停在地下车库"))
    async with aclosing(aiter(kernel.stream("memory.snapshot", {"backup": "b1"}))) as items:  # type: ignore[type-var]
        assert (await anext(items))["type"] == "frozen"
        await kernel.call("memory.append", an_append("t2", "later"))
        async for item in items:
            if item["type"] == "done":
                break
        with closing(sqlite3.connect(tmp_path / "backup" / "b1" / "memory.db")) as copy:
            assert list(copy.execute("SELECT id FROM event")) == [("t1",)]
    assert not (tmp_path / "backup").exists()


async def test_a_backup_needs_a_name(kernel: LocalPeer) -> None:
    with pytest.raises(Invalid):
        await anext(aiter(kernel.stream("memory.snapshot", {})))


async def test_a_start_removes_what_a_killed_backup_left(tmp_path: Path) -> None:
    left = tmp_path / "backup" / "old" / "memory.db"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    await SqliteStore.open(tmp_path / "memory.db").close()
    assert not (tmp_path / "backup").exists()
