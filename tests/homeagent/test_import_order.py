"""The order of a file is kept, whatever happens to the memory service while batches of it are on their way."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from homeagent.commands.memory import importing
from homeagent.commands.memory._lines import open_lines
from homeagent_sdk.errors import Unavailable

LINES = 3_000
"""Six batches, of which four fly at once."""


class Restarting:
    """The memory service as a caller sees it: it dies with calls under way, and what comes then waits for the next."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self._is_dead = asyncio.Event()
        self._is_back = asyncio.Event()
        self._calls = 0

    async def call(self, method: str, body: Any, *, timeout_s: float, idempotent: bool = False) -> dict[str, int]:
        self._calls += 1
        if self._calls == 1:
            return self._store(body)
        if self._calls <= importing._IN_FLIGHT:
            await self._is_dead.wait()
            raise Unavailable("memory has died")
        if self._calls == importing._IN_FLIGHT + 1:
            # Sent when nobody was there to take it.
            self._is_dead.set()
            asyncio.get_running_loop().call_later(0.05, self._is_back.set)
        await self._is_back.wait()
        return self._store(body)

    def _store(self, body: Any) -> dict[str, int]:
        new = [event["id"] for event in body["events"] if event["id"] not in self.stored]
        self.stored += new
        return {"stored": len(new), "known": len(body["events"]) - len(new), "forgotten": 0}


async def test_a_batch_that_waited_for_the_next_memory_does_not_overtake_those_that_died(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    line = {"time": "2025-03-04T05:06:07Z", "speaker": "Ann", "peer": "ann", "text": "hello"}
    file.write_text("".join(f"{json.dumps({'id': f'line-{number}', **line})}\n" for number in range(LINES)))
    memory = Restarting()
    with open_lines(file, importing.event_of) as lines:
        told = [counts async for counts, _ in importing._sent(memory, lines)]  # type: ignore[arg-type]
    assert memory.stored == [f"line-{number}" for number in range(LINES)]
    assert sum(counts["stored"] for counts in told) == LINES
