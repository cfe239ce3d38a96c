"""Backups of the kernel's databases together with those of the services, at one moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.errors import Conflict, HomeAgentError, Unavailable
from homeagent_sdk.testing import LocalBus
from kernel.backup import Backup, paused
from kernel.journal import Journal, NewTurn

Item = dict[str, Any]


class Service:
    """A service that makes its copy as it is told."""

    def __init__(self, bus: LocalBus, name: str) -> None:
        self.name = name
        self.may_freeze = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.may_freeze.set()
        self.may_finish.set()
        self.is_frozen = asyncio.Event()
        self.dies: HomeAgentError | None = None
        self.holds = 0
        peer = bus.peer(name)
        peer.serve(f"{name}.health", self._health)
        peer.serve_stream(f"{name}.snapshot", self._snapshot)

    async def _health(self, body: Any, call: Any) -> Item:
        return {"state": "running"}

    async def _snapshot(self, body: Any, call: Any) -> AsyncIterator[Item]:
        self.holds += 1
        try:
            await self.may_freeze.wait()
            self.is_frozen.set()
            yield {"type": "frozen", "bytes": 1000}
            yield {"type": "copied", "bytes": 500, "of": 1000}
            await self.may_finish.wait()
            if self.dies is not None:
                raise self.dies
            yield {"type": "done", "databases": [{"name": f"{self.name}.db", "bytes": 1000, "schema": 3}]}
            await asyncio.Event().wait()
        finally:
            self.holds -= 1


class Kernel:
    """A journal, a backup and two services."""

    def __init__(self, folder: Path) -> None:
        self.bus = LocalBus()
        self.memory, self.provider = Service(self.bus, "memory"), Service(self.bus, "provider")
        self.journal = Journal(folder / "kernel" / "journal.db")
        self.backup = Backup(self.bus.peer("kernel", "kernel"), [self.journal], pause_limit_s=1.0)
        self.folder = folder / "kernel" / "backup"

    async def accept(self, number: int) -> None:
        await self.journal.accept(NewTurn(f"t{number}", "webui", "c1", "owner", "hello", b"f"))


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[Kernel]:
    made = Kernel(tmp_path)
    await made.journal.open()
    await made.accept(0)
    yield made
    await made.journal.close()


async def until(items: AsyncGenerator[Item, None], kind: str) -> list[Item]:
    found = [await anext(items)]
    while found[-1]["type"] != kind:
        found.append(await anext(items))
    return found


def turns_in(path: Path) -> list[str]:
    connection = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        return [row[0] for row in connection.execute("SELECT turn_id FROM turns ORDER BY sequence")]
    finally:
        connection.close()


async def test_nothing_is_written_from_the_first_to_the_last_that_freezes(kernel: Kernel) -> None:
    kernel.provider.may_freeze.clear()
    items = kernel.backup.run("b1", 60)
    first = asyncio.create_task(anext(items))
    await kernel.memory.is_frozen.wait()
    writing = asyncio.create_task(kernel.accept(1))
    done, _ = await asyncio.wait({writing, first}, timeout=0.2)
    assert not done, "a turn was accepted although the memory's moment is over and the provider's is still to come"
    kernel.provider.may_freeze.set()
    frozen = await first
    await writing
    assert 200 <= frozen["paused_ms"] < 1000
    assert frozen["type"] == "frozen" and frozen["bytes"] > 2000
    async with aclosing(items):
        finished = (await until(items, "done"))[-1]
        assert turns_in(kernel.folder / "b1" / "journal.db") == ["t0"]
        assert [(each["owner"], each["name"]) for each in finished["databases"]] == [
            ("kernel", "journal.db"),
            ("memory", "memory.db"),
            ("provider", "provider.db"),
        ]
        assert finished["time"] == frozen["time"]
    assert not kernel.folder.exists()
    assert (kernel.memory.holds, kernel.provider.holds) == (0, 0)


async def test_turns_go_on_while_the_copies_are_made(kernel: Kernel) -> None:
    kernel.memory.may_finish.clear()
    async with aclosing(kernel.backup.run("b1", 60)) as items:
        assert (await anext(items))["type"] == "frozen"
        await asyncio.wait_for(kernel.accept(1), 1)
        assert (await anext(items))["type"] == "copied"
        kernel.memory.may_finish.set()
        await until(items, "done")


async def test_a_service_that_does_not_freeze_stops_turns_no_longer_than_the_limit(kernel: Kernel) -> None:
    kernel.memory.may_freeze.clear()
    items = kernel.backup.run("b1", 60)
    first = asyncio.create_task(anext(items))
    await kernel.provider.is_frozen.wait()
    await asyncio.wait_for(kernel.accept(1), 1.5)
    with pytest.raises(Unavailable, match="1 s"):
        await first
    assert not kernel.folder.exists()
    assert (kernel.memory.holds, kernel.provider.holds) == (0, 0)


@pytest.mark.parametrize("name", ["memory", "provider"])
async def test_a_service_that_is_not_there_is_named_before_anything_stops(kernel: Kernel, name: str) -> None:
    del kernel.bus.peers[name]
    before = kernel.journal.transactions
    with pytest.raises(Unavailable, match=name) as raised:
        await anext(kernel.backup.run("b1", 60))
    assert raised.value.detail == {"service": name}
    assert kernel.journal.transactions == before
    assert not kernel.folder.exists()


async def test_a_service_that_dies_meanwhile_is_named_and_the_next_backup_works(kernel: Kernel) -> None:
    kernel.memory.dies = Unavailable("it is not there")
    async with aclosing(kernel.backup.run("b1", 60)) as items:
        with pytest.raises(Unavailable, match=r"memory.*it is not there"):
            await until(items, "done")
    assert not kernel.folder.exists()
    assert (kernel.memory.holds, kernel.provider.holds) == (0, 0)
    kernel.memory.dies = None
    async with aclosing(kernel.backup.run("b2", 60)) as items:
        await until(items, "done")


async def test_one_that_dies_before_its_copies_are_collected_ends_the_backup(kernel: Kernel) -> None:
    kernel.provider.dies = Unavailable("it is not there")
    kernel.provider.may_finish.clear()
    async with aclosing(kernel.backup.run("b1", 60)) as items:
        await anext(items)
        kernel.provider.may_finish.set()
        with pytest.raises(Unavailable, match="provider"):
            await until(items, "done")


async def test_there_is_one_at_a_time(kernel: Kernel) -> None:
    async with aclosing(kernel.backup.run("b1", 60)) as items:
        await until(items, "done")
        with pytest.raises(Conflict):
            await anext(kernel.backup.run("b2", 60))
        assert (kernel.folder / "b1" / "journal.db").exists()


async def test_a_caller_that_is_cancelled_leaves_nothing(kernel: Kernel) -> None:
    kernel.memory.may_finish.clear()
    has_begun = asyncio.Event()

    async def run() -> None:
        async with aclosing(kernel.backup.run("b1", 60)) as items:
            async for _ in items:
                has_begun.set()

    task = asyncio.create_task(run())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not kernel.folder.exists()
    assert (kernel.memory.holds, kernel.provider.holds) == (0, 0)


async def test_a_writer_that_is_busy_too_long_fails_the_pause_and_is_not_kept(kernel: Kernel) -> None:
    free = threading.Event()
    busy = asyncio.create_task(kernel.journal.between_writes(lambda connection: free.wait(10)))
    with pytest.raises(Unavailable):
        async with paused([kernel.journal], 0.1):
            pytest.fail("the writer was not paused")
    assert not busy.done()
    free.set()
    assert await busy
    await asyncio.wait_for(kernel.accept(1), 1)


async def test_a_pause_that_was_too_long_is_no_pause(kernel: Kernel) -> None:
    with pytest.raises(Unavailable):
        async with paused([kernel.journal], 0.1):
            writing = asyncio.create_task(kernel.accept(1))
            await asyncio.shield(writing)
    await asyncio.wait_for(writing, 1)


async def test_a_database_that_is_closed_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(Unavailable, match=r"journal\.db is closed"):
        async with paused([journal], 1.0):
            pytest.fail("there is nothing to pause")
