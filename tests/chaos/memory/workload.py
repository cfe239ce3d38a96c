"""``python -m tests.chaos.memory.workload FD``: forks processes that work on a store until they are killed.

One process imports everything once and forks for each run, so that a run starts in milliseconds. A run says what it
does, a JSON object a line: ``opening``, ``open``, ``space``, ``begin`` and ``done`` of each operation, ``failed``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
import traceback
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from homeagent_sdk import process
from memory_service.store.sqlite import SqliteStore
from tests.chaos.memory import faults, invented, operations, power_cut
from tests.chaos.memory.work import Work

WORKERS = 4
POWER_CUT = 75
"""The exit code of a process whose power went."""

_FAILED = 70
_MAX_ORDERS = 65_536


@dataclass(frozen=True, slots=True)
class Cut:
    """When the power goes: in the middle of a change to a file after a line was said.

    :ivar after: ``opening``, or a kind of operation that begins
    :ivar times: so many such lines are said before
    :ivar changes: the how-manieth change from then on
    :ivar lies: the disk acknowledges what it does not keep
    """

    after: str
    times: int
    changes: int
    lies: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    """What a run shall do.

    :ivar path: the database
    :ivar aim: the kind of operation that is done more often than others; none if it is of no kind
    :ivar first: by kind of item the first number that none has yet
    :ivar again: events whose append was not acknowledged the last time
    :ivar checkpoint_pages: after so many pages the log is moved into the database
    :ivar fault: a mistake to plant, of :data:`.faults.FAULTS`
    """

    path: str
    seed: int
    aim: str
    first: dict[str, int]
    again: tuple[int, ...] = ()
    checkpoint_pages: int = 1_000
    fault: str | None = None
    cut: Cut | None = None

    def to_json(self) -> bytes:
        """Write them down."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        cut = fields.pop("cut")
        return cls(**fields, cut=None if cut is None else Cut(**cut))


class _Run:
    def __init__(self, orders: Orders, descriptor: int) -> None:
        self._orders = orders
        self._descriptor = descriptor
        self._disk: power_cut.Disk | None = None
        self._said = 0

    def fail(self, error: str) -> None:
        """Say why it cannot go on, and end; not while another thread lets the power go."""
        with self._disk.lock if self._disk is not None else nullcontext():
            self._say(say="failed", error=error)
            os._exit(_FAILED)

    def __call__(self) -> None:
        with ExitStack() as stack:
            if self._orders.fault is not None:
                stack.enter_context(faults.FAULTS[self._orders.fault]())
            if self._orders.cut is not None:
                self._disk = power_cut.Disk(lies=self._orders.cut.lies)
                stack.enter_context(power_cut.system_calls(self._disk))
                access = power_cut.register(self._disk, is_default=True)
                stack.callback(access.unregister)
            self._say(say="opening")
            store = SqliteStore.open(Path(self._orders.path))
            asyncio.run(self._work(store))

    async def _work(self, store: SqliteStore) -> None:
        orders, dice = self._orders, random.Random(self._orders.seed)
        await store._database.write(lambda connection: connection.wal_autocheckpoint(orders.checkpoint_pages))
        working = Work(store, self._say, dice, orders.first)
        await working.look()
        self._say(say="open")
        await operations.finish_forgetting(working)
        space = dice.choice(("space 1", "space 1", "space 2"))
        self._say(say="space", name=space)
        working.space = await store.vectors.open_space(space, "invented", invented.DIMENSIONS)
        async with asyncio.TaskGroup() as group:
            for number in orders.again:
                group.create_task(operations.append(working, number))
            for _ in range(WORKERS):
                group.create_task(operations.keep_working(working, orders.aim))

    def _say(self, **line: Any) -> None:
        cut = self._orders.cut
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")
        if cut is None or self._disk is None or cut.after != line.get("kind", line["say"]):
            return
        self._said += 1
        if self._said == cut.times:
            self._disk.cut_after(cut.changes, random.Random(self._orders.seed), lambda: os._exit(POWER_CUT))


def _run(orders: Orders, descriptor: int, zygote: int) -> None:
    process.die_with_parent(zygote)
    running = _Run(orders, descriptor)
    try:
        running()
    except BaseException:
        running.fail(traceback.format_exc())


def main() -> None:
    """Fork a run for every order that comes, and say how each ended."""
    zygote = os.getpid()
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        while True:
            text, descriptors, _, _ = socket.recv_fds(orders, _MAX_ORDERS, 1)
            if not text:
                return
            pid = os.fork()
            if pid == 0:
                orders.close()
                _run(Orders.from_json(text), descriptors[0], zygote)
            os.close(descriptors[0])
            orders.send(str(pid).encode())
            _, status = os.waitpid(pid, 0)
            orders.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    main()
