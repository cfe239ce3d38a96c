"""``kill -9`` of the memory in the middle of a prune: the conversation goes on, and no event is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import apsw
import pytest

from memory_service.model import Event
from memory_service.store.sqlite import SqliteStore
from tests.fakes.openai_server import FakeOpenAI
from tests.home import Home, wait_until

pytestmark = pytest.mark.chaos

EARLIER = 1_500
"""Events of the person's past: three prunes' worth."""


def fill(path: Path) -> None:
    """Give the owner a past, as an import does."""

    async def write() -> None:
        store = SqliteStore.open(path)
        told = "what was said in the past " + "word " * 40
        past = [
            Event(f"past-{n}", "import", "old", "owner", "Ann", ("owner",), False, 1.6e9 + n, f"{n} {told}", "answer")
            for n in range(EARLIER)
        ]
        await store.events.append_many(past)
        await store.close()

    path.parent.mkdir(mode=0o700, parents=True)
    asyncio.run(write())


class Count:
    """Looks into the memory's database from outside."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)

    def __call__(self, question: str) -> int:
        return int(self._connection.execute(question).get)

    @property
    def archived(self) -> int:
        return self("SELECT count(*) FROM event WHERE tier = 'document'")

    def check(self) -> None:
        """Assert that every event is there once, in one tier, and that every document has its events."""
        assert self("SELECT count(*) FROM event WHERE id LIKE 'past-%'") == EARLIER
        assert self("SELECT count(*) FROM event WHERE (tier = 'context') <> (document IS NULL)") == 0
        orphans = "SELECT count(*) FROM document d WHERE NOT EXISTS (SELECT 1 FROM event e WHERE e.document = d.number)"
        assert self(orphans) == 0
        assert self._connection.execute("PRAGMA integrity_check").get == "ok"


def kill_once_archived(count: Count, more_than: int, pid: int, killed: threading.Event) -> None:
    """Kill the memory as soon as the first slice of a prune is committed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if count.archived > more_than:
            os.kill(pid, signal.SIGKILL)
            killed.set()
            return
        time.sleep(0.0005)


def test_the_memory_may_die_in_the_middle_of_a_prune(tmp_path: Path, far_end: FakeOpenAI) -> None:
    home = Home(tmp_path, far_end.url, HOMEAGENT_LLM_CONTEXT_WINDOW="6000")
    path = home.data_dir / "memory" / "memory.db"
    fill(path)
    with home:
        said, at_kill, broken_off = [], [], []
        for _ in range(2):
            count, killed, pid = Count(path), threading.Event(), home.pid("memory_service")
            before = count.archived
            killer = threading.Thread(target=kill_once_archived, args=(count, before, pid, killed))
            killer.start()
            while not killed.is_set():
                said.append(f"number {len(said)} " + "and so on " * 40)
                status, answer = home.say(said[-1], "lane", delivery=f"key-{len(said)}")
                assert status == 200, answer
                assert len(said) < 200, "there was no prune"
            killer.join()
            count.check()
            at_kill.append(count.archived)
            broken_off.append(0 < count.archived - before < 512)
            wait_until(lambda old=pid: home.ps()["memory_service"]["pid"] not in (None, 0, old), 30, "a new memory")
            home.wait_ready()
        while Count(path).archived <= at_kill[-1]:
            said.append(f"number {len(said)} " + "and so on " * 40)
            assert home.say(said[-1], "lane")[0] == 200
            assert len(said) < 300, "the lane does not prune any more"
        final = Count(path)
        wait_until(
            lambda: final("SELECT count(*) FROM event WHERE channel <> 'import'") == len(said), 20, "every turn, once"
        )
        final.check()
        assert any(broken_off), "both prunes were over before the memory was killed"
