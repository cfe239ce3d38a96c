"""How fast recall by words is: ``python -m benchmarks.recall_words [--events 20000] [--queries 400] [--json]``.

Fills a memory with invented events of two households, in Chinese and English, then asks about single ones, over a bus
in memory, so that the service is measured and not the sockets. Fails if the 95th percentile is above the limit.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from memory_service.service import MemoryService
from memory_service.store.sqlite import SqliteStore
from memory_service.words.segmenter import Segmenter

LIMIT_P95_MS = 15.0
_AT_ONCE = 64
PEOPLE = ("ann", "bea", "carl", "dora")
_SYLLABLES = (
    "ba co di fu ga ho ji ke lu ma no pe qui ro su ta ve wi xa yo zu bran clo dres fli gra plen sto tri".split()
)
_COMMON_CHARACTERS = (
    "天地人大小上下左右前后东西南北中里外山水火土木金石日月星云风雨雪花草树林海河江湖田园家门窗桌床书画琴棋"
    "车船飞机电话网站医院学校老师朋友孩子爸妈哥姐吃喝玩乐买卖开关看听说读写走跑坐站想念爱恨喜怒哀红黄蓝白黑"
)


def _words(make: Callable[[random.Random], str], count: int = 3_000) -> tuple[list[str], list[float]]:
    """Invent words, and weights by which few are frequent and most are rare, as in real language."""
    dice = random.Random(count)
    words: dict[str, None] = {}
    while len(words) < count:
        words[make(dice)] = None
    return list(words), [1 / (rank + 10) for rank in range(count)]


ENGLISH = _words(lambda dice: "".join(dice.choices(_SYLLABLES, k=dice.randint(2, 3))))
CHINESE = _words(lambda dice: "".join(dice.choices(_COMMON_CHARACTERS, k=2)))


def main() -> int:
    """Measure, print, and return 1 if recall is too slow or wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall_words")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(Path(folder), options.events, options.queries))
    if options.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:<22}{value}" for name, value in result.items()))
    return 0 if result["recall_p95_ms"] <= LIMIT_P95_MS and result["found"] >= 0.95 else 1


async def measure(folder: Path, events: int, queries: int) -> dict[str, Any]:
    """Fill a memory, ask it, and return the figures."""
    dice = random.Random(20_261_130)
    store = SqliteStore.open(folder / "memory.db")
    bus = LocalBus()
    segmenter = Segmenter(folder / "cache")
    MemoryService(bus.peer("memory"), store, segmenter).serve()
    kernel = bus.peer("kernel", "kernel")
    segmenter.load()
    written = await _fill(kernel, events, dice)
    alone = [await _timed(lambda n=n: kernel.call("memory.append", an_event(events + n, dice))) for n in range(100)]
    processor = time.process_time()
    answered, found = await _ask(kernel, events, queries, dice)
    processor = time.process_time() - processor
    stats = await kernel.call("memory.stats")
    await store.close()
    return {
        "events": stats["events"],
        "database_mb": round(stats["bytes"] / 1e6, 1),
        "append_per_s": round(events / written),
        "append_alone_p99_ms": _percentile(alone, 0.99),
        "recall_p50_ms": round(statistics.median(answered) * 1e3, 2),
        "recall_p95_ms": _percentile(answered, 0.95),
        "recall_p99_ms": _percentile(answered, 0.99),
        "recall_cpu_mean_ms": round(processor / queries * 1e3, 2),
        "found": round(found / queries, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def an_event(number: int, dice: random.Random) -> dict[str, Any]:
    """Invent the append of an event; every fifth names something that no other does."""
    is_chinese = number % 2 == 0
    join, (words, weights) = ("", CHINESE) if is_chinese else (" ", ENGLISH)
    said = join.join(dice.choices(words, weights, k=dice.randint(8, 40)))
    if number % 5 == 0:
        said += f"，还有{needle(number)}" if is_chinese else f", and {needle(number)}"
    person = PEOPLE[number % len(PEOPLE)]
    return {
        "event": {
            "id": f"turn-{number}",
            "lane": {"channel": "webui", "conversation": f"c{number // 50}"},
            "principal": person,
            "speaker": person.title(),
            "visibility": {"shared": True} if number % 10 == 0 else {"principals": [person]},
            "time": 1_700_000_000 + number * 600,
            "input": said,
            "response": join.join(dice.choices(words, weights, k=dice.randint(10, 80))),
        }
    }


def needle(number: int) -> str:
    """Return what only this event names."""
    return (
        f"zq{number}"
        if number % 2
        else "张李王赵陈"[number % 5] + chr(0x5000 + number % 7_000) + chr(0x6000 + number // 7)
    )


def a_question(number: int, dice: random.Random) -> str:
    """Ask about what only one event names, among words that many have."""
    words, weights = ENGLISH if number % 2 else CHINESE
    one, other, third = dice.choices(words, weights, k=3)
    if number % 2:
        return f"Do you remember what I said about the {needle(number)} {one} and the {other} {third}?"
    return f"你还记得{needle(number)}的{one}吗，我说过什么{other}的{third}？"


async def _fill(kernel: LocalPeer, events: int, dice: random.Random) -> float:
    started = time.perf_counter()
    for first in range(0, events, _AT_ONCE):
        batch = range(first, min(first + _AT_ONCE, events))
        await asyncio.gather(*(kernel.call("memory.append", an_event(n, dice)) for n in batch))
        _progress(f"{batch[-1] + 1} of {events} events")
    return time.perf_counter() - started


async def _ask(kernel: LocalPeer, events: int, queries: int, dice: random.Random) -> tuple[list[float], int]:
    answered: list[float] = []
    found = 0
    for count in range(queries):
        number = dice.randrange(events // 5) * 5
        body = {"query": a_question(number, dice), "audience": [PEOPLE[number % len(PEOPLE)]]}
        hits: list[dict[str, Any]] = []

        async def ask(body: dict[str, Any] = body, hits: list[dict[str, Any]] = hits) -> None:
            hits.extend((await kernel.call("memory.recall", body))["hits"])

        answered.append(await _timed(ask))
        found += f"turn-{number}" in [hit["id"] for hit in hits]
        _progress(f"{count + 1} of {queries} questions")
    return answered, found


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def _percentile(values: list[float], share: float) -> float:
    return round(sorted(values)[min(int(len(values) * share), len(values) - 1)] * 1e3, 2)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
