"""Kills the memory again and again, or takes its power away, and looks each time at what is left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from homeagent_sdk.errors import HomeAgentError
from memory_service.model import Report
from memory_service.store.sqlite import SqliteStore
from tests.chaos.memory import inspection, invented, old_database
from tests.chaos.memory.ledger import Ledger
from tests.chaos.memory.operations import OPERATIONS
from tests.chaos.memory.workload import POWER_CUT, Cut, Orders

OPENING = "opening"
"""The store is opened: made, moved to a newer schema, or recovered after the last kill."""

VERIFY = "the store's own check"
"""What a problem begins with that the store itself has found."""

AIMS = (OPENING, *OPERATIONS)
_ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 30.0
_MOST_LINES = 3_000
_MOST_CHANGES = {OPENING: (12, 260), "import": (90,), "forget": (120,)}
"""In how many changes to files an operation is done, about; 30 for the others. A memory is opened with a few, or made
or migrated with many."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one kill has shown.

    :ivar aim: in which operation it was meant to fall
    :ivar fell_in: the kinds of operations that were under way, ``nothing`` if none was
    :ivar acknowledged: how many operations were acknowledged before it
    :ivar problems: what is wrong afterwards, in words
    """

    aim: str
    fell_in: tuple[str, ...]
    acknowledged: int
    problems: tuple[str, ...]


class Zygote:
    """Starts runs of :mod:`.workload`, one at a time."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.memory.workload", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=_ROOT,
        )
        theirs.close()

    def start(self, orders: Orders) -> tuple[int, int]:
        """Start a run; returns its pid and where to read its lines."""
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._orders, [orders.to_json()], [writing])
        finally:
            os.close(writing)
        return int(self._orders.recv(32)), reading

    def wait(self) -> int:
        """Wait for the end of the run, and return its exit code."""
        return int(self._orders.recv(32))

    def close(self) -> None:
        """End, with whatever still runs."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


class Campaign:
    """A memory, what must be in it, and the ways to hurt it. Damage adds up until :meth:`renew`.

    :param folder: an empty one
    :param fault: a mistake to plant; see :mod:`.faults`
    :param lies: what the disk acknowledges it does not keep, when the power goes
    """

    def __init__(self, folder: Path, seed: int, *, fault: str | None = None, lies: bool = False) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._fault = fault
        self._lies = lies
        self._zygote = Zygote()
        self._took_s: dict[str, deque[float]] = {aim: deque(maxlen=40) for aim in AIMS}
        self._generation = 0
        self.renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zygote.close()

    def renew(self, old_events: int = 0) -> None:
        """Go on with another memory: an empty one, or one that the first release made, with so many events."""
        self._generation += 1
        self._path = self._folder / f"memory-{self._generation}" / "memory.db"
        self._path.parent.mkdir(parents=True)
        self._ledger = Ledger()
        self._first = {"event": old_events, "note": 0, "fact": 0, "media": 0}
        self._again: tuple[int, ...] = ()
        self._old_events = old_events
        if old_events:
            old_database.build(self._path, map(invented.event, range(old_events)))
            self._ledger.expect(range(old_events))

    def kill(self, aim: str) -> Round:
        """Let it work, send SIGKILL in the middle of an operation of a kind, and look at what is left."""
        pid, lines = self._zygote.start(self._orders(aim))
        run = _Lines(lines, self._ledger, self._took_s)
        try:
            if run.follow_until(aim, self._dice.randint(1, 4)):
                _pause(self._dice.uniform(0, 1.2) * self._usual_s(aim))
        finally:
            with suppress(ProcessLookupError):  # it has failed by itself, which is reported below
                os.kill(pid, signal.SIGKILL)
            run.follow_to_the_end()
            exit_code = self._zygote.wait()
        return self._round(aim, run, exit_code == -signal.SIGKILL, f"ended with {exit_code} before it was killed")

    def cut(self, aim: str) -> Round:
        """Let it work, take the power away in the middle of an operation of a kind, and look at what is left."""
        times = 1 if aim == OPENING else self._dice.randint(1, 4)
        changes = self._dice.randint(1, self._dice.choice(_MOST_CHANGES.get(aim, (30,))))
        _, lines = self._zygote.start(self._orders(aim, Cut(aim, times, changes, self._lies)))
        run = _Lines(lines, self._ledger, self._took_s)
        run.follow_to_the_end()
        exit_code = self._zygote.wait()
        return self._round(aim, run, exit_code == POWER_CUT, f"ended with {exit_code} before the power went")

    def _orders(self, aim: str, cut: Cut | None = None) -> Orders:
        return Orders(
            path=str(self._path),
            seed=self._dice.getrandbits(48),
            aim=aim,
            first=self._first,
            again=self._again,
            checkpoint_pages=self._dice.choice((20, 100, 1_000)),
            fault=self._fault,
            cut=cut,
        )

    def _usual_s(self, aim: str) -> float:
        return statistics.median(self._took_s[aim]) if self._took_s[aim] else 0.004

    def _round(self, aim: str, run: _Lines, has_ended_as_meant: bool, otherwise: str) -> Round:
        under_way = self._ledger.begun.values()
        fell_in = tuple(operation.kind for operation in under_way) if run.is_open else (OPENING,)
        for kind, number in run.touched:
            self._first[kind] = max(self._first[kind], number + 1)
        self._again = tuple(
            number for operation in under_way if operation.kind == "append" for _, number in operation.becomes
        )
        problems = list(run.failures)
        if not has_ended_as_meant:
            problems.append(otherwise)
        problems += self._look()
        return Round(aim, fell_in or ("nothing",), run.acknowledged, tuple(problems))

    def _look(self) -> Iterator[str]:
        """Open a copy of what is left with the store itself, then read it without; the next run finds the original."""
        copy = self._path.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for file in self._path.parent.glob("memory.db*"):
            # The lock is of a process, the shared memory of one that is gone.
            if not file.name.endswith(("-shm", ".lock")):
                shutil.copyfile(file, copy / file.name)
        try:
            report = asyncio.run(_verified(copy / self._path.name))
        except HomeAgentError as error:
            yield f"the store does not open any more: {error.message}"
            return
        for check in report.checks:
            if check.count:
                yield f"{VERIFY}: {check.name}: {check.count}, such as {check.examples}"
        found = inspection.inspect(copy / self._path.name, self._path.with_name("media"))
        yield from found.problems
        yield from self._ledger.balance(found)
        for backup in self._path.parent.glob("*.bak"):
            yield from inspection.wrong_backup(backup, self._old_events)


class _Lines:
    """Reads what a run says and enters it in the ledger."""

    def __init__(self, descriptor: int, ledger: Ledger, took_s: dict[str, deque[float]]) -> None:
        self._descriptor = descriptor
        self._ledger = ledger
        self._took_s = took_s
        self._since: dict[int | str, tuple[str, float]] = {}
        self._rest = b""
        self._is_over = False
        self.is_open = False
        self.acknowledged = 0
        self.failures: list[str] = []
        self.touched: set[tuple[str, int]] = set()

    def follow_until(self, aim: str, times: int) -> bool:
        """Read until an operation of this kind has begun so many times; False if it never will."""
        seen: Counter[str] = Counter()
        lines = 0
        while not self._is_over and lines < _MOST_LINES:
            for line in self._read():
                lines += 1
                seen[line.get("kind", line["say"])] += 1
            if seen[aim] >= (1 if aim == OPENING else times):
                return True
        return False

    def follow_to_the_end(self) -> None:
        """Read what was said until the process ended."""
        while not self._is_over:
            for _ in self._read():
                pass
        os.close(self._descriptor)

    def _read(self) -> Iterator[dict[str, Any]]:
        if not select.select([self._descriptor], [], [], _PATIENCE_S)[0]:
            raise TimeoutError(f"the workload said nothing for {_PATIENCE_S:g} s")
        told = os.read(self._descriptor, 65_536)
        self._is_over = not told
        *lines, self._rest = (self._rest + told).split(b"\n")
        for text in lines:
            line = json.loads(text)
            self._enter(line)
            yield line

    def _enter(self, line: dict[str, Any]) -> None:
        self._ledger.follow(line)
        now, say = time.perf_counter(), line["say"]
        if say == "begin":
            self._since[line["operation"]] = (line["kind"], now)
            self.touched |= {(what, number) for what, numbers, _ in line["becomes"] for number in numbers}
        elif say == "opening":
            self._since[OPENING] = (OPENING, now)
        elif say in ("done", "open"):
            kind, since = self._since.pop(line.get("operation", OPENING))
            self._took_s[kind].append(now - since)
            self.is_open = True
            self.acknowledged += say == "done"
        elif say == "failed":
            self.failures.append(line["error"])


async def _verified(path: Path) -> Report:
    store = SqliteStore.open(path)
    try:
        return await store.upkeep.verify(lambda done, of: None)
    finally:
        await store.close()


def _pause(seconds: float) -> None:
    """Wait to within microseconds, which sleeping does not."""
    end = time.perf_counter() + seconds
    if seconds > 0.002:
        time.sleep(seconds - 0.001)
    while time.perf_counter() < end:
        pass
