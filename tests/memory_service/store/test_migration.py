"""A memory of the first release is brought up to date with nothing lost, and wherever it is killed it is old or new."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from memory_service.model import Event, ToolResult
from memory_service.store import old_tokenizer
from memory_service.store.sqlite import SqliteStore
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.chaos.memory import old_database
from tests.memory_service.samples import NOON, an_event

ROOT = Path(__file__).resolve().parents[3]
EVENTS = 5_000
PEOPLE = ("ann", "bea", "carl")
OPEN = (
    "import asyncio, sys, pathlib; from memory_service.store.sqlite import SqliteStore; print('go', flush=True);"
    "asyncio.run(SqliteStore.open(pathlib.Path(sys.argv[1])).close()); print('done', flush=True)"
)


def events(count: int = EVENTS) -> list[Event]:
    """Events of every kind: of one, of two, of all; Chinese, English, both and nothing; with tools, by the agent."""
    dice = random.Random(2)
    made = []
    for n in range(count):
        sees = ((), ("ann",), ("bea", "ann"), ("carl",), ("ann", "bea", "carl"))[n % 5]
        text = (
            f"我们在静安寺见过{n}号",
            f"The server at 10.0.{n % 250}.{n // 250} runs v2.{n}",
            f"修改youer服务端{n}",
            "",
            f"needle{n} " * dice.randint(1, 30),
        )[n % 5 if n % 7 else 4]
        results = (ToolResult("map", f"result{n}"), ToolResult("vault", f"secret{n}", no_memory=True)) if n % 3 else ()
        made.append(
            an_event(
                f"turn-{n}",
                text,
                f"回答 answer{n}" if n % 2 else "",
                sees=sees,
                principal=PEOPLE[n % 3],
                speaker=PEOPLE[n % 3].title(),
                conversation=f"c{n % 11}",
                time=NOON + n * 3_600 + 0.5,
                tools_used=("map", "vault") if n % 3 else (),
                tool_results=results,
                origin="self" if n % 13 == 0 else "user",
            )
        )
    return made


async def check(path: Path, expected: list[Event], segmenter: Segmenter) -> None:
    store = SqliteStore.open(path)
    try:
        ids = [event.id for event in expected]
        stored = {event.id: event for event in await store.events.get(ids)}
        assert len(stored) == (await store.upkeep.stats()).events == len(expected)
        for event in expected:
            assert stored[event.id] == an_event_with_sorted_names(event)
        assert (await store.upkeep.verify(lambda done, of: None)).ok
        assert await store.vectors.waiting() == len(expected)
        await check_found(store, expected, segmenter)
    finally:
        await store.close()


def an_event_with_sorted_names(event: Event) -> Event:
    fields = {name: getattr(event, name) for name in Event.__slots__}
    return Event(**{**fields, "visible_to": tuple(sorted(event.visible_to))})


async def check_found(store: SqliteStore, expected: list[Event], segmenter: Segmenter) -> None:
    """Every fiftieth event is found by what only it says, by whoever may see it and by nobody else."""
    for number in range(0, len(expected), 50):
        event = expected[number]
        asked = [f"answer{number}", f"result{number}"] if number % 2 else [f"result{number}"] if number % 3 else []
        asked += [f"needle{number}"] if "needle" in event.input else []
        asked += [f"10.0.{number % 250}.{number // 250}"] if event.input.startswith("The server") else []
        for person in (*PEOPLE, "nobody"):
            sees = event.shared or person in event.visible_to
            for question in asked:
                search = await store.events.find(terms(question, segmenter), (person,), (), 3)
                assert (event.id in [candidate.event.id for candidate in search.candidates]) == sees, question
    search = await store.events.find(terms("静安寺", segmenter), ("nobody",), (), EVENTS)
    assert {c.event.id for c in search.candidates} == {e.id for e in expected if e.shared and "静安寺" in e.input}
    assert not (await store.events.find(terms("secret1", segmenter), None, (), 3)).candidates


async def test_a_memory_of_the_first_release_loses_nothing(tmp_path: Path, segmenter: Segmenter) -> None:
    path = tmp_path / "memory.db"
    old_database.build(path, events())
    await check(path, events(), segmenter)
    # What was copied before can still be opened by what made it.
    copy = apsw.Connection(str(tmp_path / "memory.db.before-2.bak"))
    old_tokenizer.register(copy)
    assert copy.execute("SELECT count(*) FROM event_words WHERE event_words MATCH 'needle7'").get == 1
    copy.close()


async def test_what_nobody_could_see_is_its_own_persons(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    nobodys = replace(an_event("nobody's", "cake", principal="ann"), visible_to=())
    old_database.build(path, [an_event("bea's", sees=("bea",)), nobodys, an_event("all's", sees=())])
    store = SqliteStore.open(path)
    found = {event.id: (event.shared, event.visible_to) for event in await store.events.get(["nobody's", "all's"])}
    await store.close()
    assert found == {"nobody's": (False, ("ann",)), "all's": (True, ())}


def version(path: Path) -> int:
    """Check that the database is as one of the two schemas has it, whole, and return which."""
    connection = apsw.Connection(str(path))
    old_tokenizer.register(connection)
    try:
        version = int(connection.execute("SELECT max(version) FROM schema_version").get)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        assert ("event_visibility" in tables) == (version == 1)
        assert ("audience" in tables) == (version == 2) and "event_1" not in tables
        assert connection.execute("SELECT count(*) FROM event").get == EVENTS
        assert connection.execute("SELECT count(*) FROM event_words_docsize").get == EVENTS
        assert connection.execute("PRAGMA integrity_check").get == "ok"
        return version
    finally:
        connection.close()


@pytest.mark.chaos
def test_killed_at_any_moment_it_is_before_or_after(tmp_path: Path, segmenter: Segmenter) -> None:
    path = tmp_path / "memory.db"
    old_database.build(path, events())
    dice = random.Random(5)
    started = time.monotonic()
    untouched = (tmp_path / "memory.db").read_bytes()
    assert _opened(path, kill_after_s=None) == "done"
    lasts_s = time.monotonic() - started
    for _ in range(12):
        for file in tmp_path.glob("memory.db*"):
            file.unlink()
        path.write_bytes(untouched)
        _opened(path, kill_after_s=dice.uniform(0.0, lasts_s))
        version(path)
    asyncio.run(check(path, events(), segmenter))
    assert version(path) == 2


def _opened(path: Path, kill_after_s: float | None) -> str:
    """Open a store in another process, perhaps to kill it after a while; return the last that it said."""
    child = subprocess.Popen([sys.executable, "-c", OPEN, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "go"
    if kill_after_s is not None:
        try:
            child.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            os.kill(child.pid, signal.SIGKILL)
    said = child.stdout.read().strip()
    child.stdout.close()
    child.wait()
    return said
