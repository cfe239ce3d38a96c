"""How fast the memory's store is: ``python -m benchmarks.memory_store [--events 20000] [--large 100000] [--json]``.

Imports invented turns of about 130 characters (in Chinese: 60) at full speed while single turns are appended, as people
speak while an import runs; appends single turns alone; and asks questions of a memory of two sizes. Everything runs in
one process over a bus in memory, as in the service. Fails if a figure misses its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.recall_words import CHINESE, ENGLISH, PEOPLE
from homeagent_sdk import process
from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.model import Event
from memory_service.operating import Operating
from memory_service.service import MemoryService
from memory_service.store.sqlite import SqliteStore
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter

LIMITS = {
    "import_per_s": (3_000.0, "least"),
    "import_live_p99_ms": (15.0, "most"),
    "bus_import_per_s": (3_000.0, "least"),
    "bus_import_live_p99_ms": (15.0, "most"),
    "find_p95_ms": (8.0, "most"),
}
_CALL = 500
_PAUSE_S = 0.02
_QUESTIONS = 300


def main() -> int:
    """Measure, print, and return 1 if a figure misses its limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_store")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=100_000, help="size of the larger memory, 0 to leave it out")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    process.lower_switch_interval()  # as the service does
    figures = asyncio.run(measure(options.events, options.large))
    missed = [name for name, value in figures.items() if _misses(name, value)]
    if options.json:
        print(json.dumps({**figures, "missed": missed}))
    else:
        print("\n".join(f"{name:<26}{value}{'  missed' if name in missed else ''}" for name, value in figures.items()))
    return 1 if missed else 0


async def measure(events: int, large: int) -> dict[str, float]:
    """Run all parts, each on a memory of its own, and return the figures."""
    figures: dict[str, float] = {}
    async with _opened() as (store, _, segmenter):
        figures |= await _import(store, range(events), "import", is_chinese=False)
        figures |= await _alone(store)
        figures |= await _find(store, segmenter, events, "find")
        if large > events:
            await _append_all(store, [an_event(number, number % 2 == 0) for number in range(events, large)])
            figures |= await _find(store, segmenter, events, f"find_{large}")
        figures["database_mb"] = round((await store.upkeep.stats()).bytes / 1e6, 1)
    async with _opened() as (store, _, _):
        figures |= await _import(store, range(events), "chinese_import", is_chinese=True)
    async with _opened() as (_, kernel, _):
        figures |= await _import_over_bus(kernel, range(events))
    figures["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return figures


def an_event(number: int, is_chinese: bool) -> Event:
    """Invent a turn of about 130 characters, 60 in Chinese; every fifth names something that no other does."""
    dice = random.Random(number)
    join, (words, weights) = ("", CHINESE) if is_chinese else (" ", ENGLISH)
    said = join.join(dice.choices(words, weights, k=28 if is_chinese else 18))
    if number % 5 == 0:
        said += f"，还有zq{number}" if is_chinese else f", and zq{number}"
    person = PEOPLE[number % len(PEOPLE)]
    at = 1_700_000_000.0 + number * 600
    return Event(f"turn-{number}", "import", "c", person, person.title(), (person,), False, at, said, "")


async def _import(store: SqliteStore, numbers: range, name: str, *, is_chinese: bool) -> dict[str, float]:
    events = [an_event(number, is_chinese) for number in numbers]
    return await _while_live(
        name,
        len(events),
        _append_all(store, events),
        lambda number: store.events.append(an_event(10_000_000 + number, is_chinese)),
    )


async def _append_all(store: SqliteStore, events: Sequence[Event]) -> None:
    for first in range(0, len(events), _CALL):
        await store.events.append_many(events[first : first + _CALL])


async def _import_over_bus(kernel: LocalPeer, numbers: range) -> dict[str, float]:
    events = [an_event(number, is_chinese=False) for number in numbers]
    bodies = [[_wire(event) for event in events[first : first + _CALL]] for first in range(0, len(events), _CALL)]

    async def send() -> None:
        for body in bodies:
            await kernel.call("memory.import", {"events": body})

    return await _while_live(
        "bus_import",
        len(events),
        send(),
        lambda number: kernel.call("memory.append", _append_body(an_event(10_000_000 + number, False))),
    )


async def _while_live(
    name: str, count: int, work: Awaitable[None], append: Callable[[int], Awaitable[Any]]
) -> dict[str, float]:
    """Measure bulk work, and single appends every 20 ms as long as it runs."""
    taken: list[float] = []
    task = asyncio.ensure_future(work)
    started = time.perf_counter()
    while not task.done():
        taken.append(await _timed(append(len(taken))))
        await asyncio.wait([task], timeout=_PAUSE_S)
    await task
    rate = (count + len(taken)) / (time.perf_counter() - started)
    return {f"{name}_per_s": round(rate), **_spread(f"{name}_live", taken)}


async def _alone(store: SqliteStore) -> dict[str, float]:
    taken = [await _timed(store.events.append(an_event(20_000_000 + number, False))) for number in range(500)]
    return _spread("alone", taken)


async def _find(store: SqliteStore, segmenter: Segmenter, events: int, name: str) -> dict[str, float]:
    dice = random.Random(5)
    taken, found = [], 0
    for _ in range(_QUESTIONS):
        number = dice.randrange(events // 5) * 5
        one, other, third = dice.choices(*ENGLISH, k=3)
        question = f"Do you remember what I said about the zq{number} {one} and the {other} {third}?"
        asked = terms(question, segmenter)
        started = time.perf_counter()
        search = await store.events.find(asked, (PEOPLE[number % len(PEOPLE)],), (), 32)
        taken.append(time.perf_counter() - started)
        found += f"turn-{number}" in [candidate.event.id for candidate in search.candidates]
    return {**_spread(name, taken), f"{name}_found": round(found / _QUESTIONS, 3)}


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[SqliteStore, LocalPeer, Segmenter]]:
    """Open a memory on a fresh disk, with its service on a bus in memory."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore.open(Path(folder) / "memory.db")
        bus, segmenter = LocalBus(), Segmenter(Path(folder) / "cache")
        peer = bus.peer("memory")
        MemoryService(peer, store, segmenter).serve()
        Operating(peer, store, Path(folder)).serve()
        try:
            yield store, bus.peer("kernel", "kernel"), segmenter
        finally:
            await store.close()


def _wire(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "time": event.time,
        "speaker": event.speaker,
        "peer": event.principal,
        "text": event.input,
    }


def _append_body(event: Event) -> dict[str, Any]:
    return {
        "event": {
            "id": event.id,
            "lane": {"channel": "webui", "conversation": "c"},
            "principal": event.principal,
            "speaker": event.speaker,
            "visibility": {"principals": [event.principal]},
            "time": event.time,
            "input": event.input,
            "response": event.response,
        }
    }


async def _timed(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


def _spread(name: str, taken: Sequence[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        f"{name}_p50_ms": round(statistics.median(ordered) * 1e3, 2),
        f"{name}_p95_ms": round(ordered[int(len(ordered) * 0.95)] * 1e3, 2),
        f"{name}_p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 2),
        f"{name}_max_ms": round(ordered[-1] * 1e3, 2),
    }


def _misses(name: str, value: float) -> bool:
    limit, kind = LIMITS.get(name, (0.0, "none"))
    return (kind == "least" and value < limit) or (kind == "most" and value > limit)


if __name__ == "__main__":
    sys.exit(main())
