"""Copies of all databases at one moment, made by their owners while turns go on.

The journal says of turns that the memory has them. Were the memory copied first, such a turn could be missing there;
were it copied last, it could know the answer of a turn that the journal takes up again after a restore, with another
answer. So the kernel stops its own writers for a moment, everybody freezes what is committed, and once all have, the
writers go on and the frozen states are copied.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import apsw
import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Unavailable
from homeagent_sdk.snapshots import COPIED, DONE, FROZEN, Copies

OTHERS: Final = ("memory", "provider")
"""Services with a database; each answers ``<name>.snapshot``."""
PAUSE_LIMIT_S: Final = 2.0
"""So long at most do turns wait for a backup."""
_ASK_TIMEOUT_S: Final = 5.0
_BUSY_MS: Final = 5_000
_log = structlog.get_logger("backup")

Item = dict[str, Any]


class Pausable(Protocol):
    """A database whose writer can be kept from its next transaction."""

    @property
    def path(self) -> Path:
        """The file."""

    async def between_writes(self, work: Callable[[apsw.Connection], float | None]) -> float | None:
        """Run ``work`` in the writer thread while nothing is written."""


class Backup:
    """Makes backups, one at a time.

    :param databases: of the kernel, all in one folder
    """

    def __init__(
        self,
        bus: BusPeer,
        databases: Sequence[Pausable],
        *,
        pause_limit_s: float = PAUSE_LIMIT_S,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._databases = databases
        self._pause_limit_s = pause_limit_s
        self._now = wall_clock
        self._copies = Copies(
            databases[0].path.parent / "backup", {each.path.name: partial(_open, each.path) for each in databases}
        )

    def clear(self) -> None:
        """Remove what a backup that was killed has left of the kernel's own copies; called at start."""
        self._copies.clear()

    async def run(self, backup: str, seconds: float) -> AsyncGenerator[Item, None]:
        """Make copies, each in ``backup/<backup>`` of its owner's folder; they vanish when the iterator is closed.

        :param seconds: after which the services give up
        :returns: ``{"type": "frozen", "time", "paused_ms", "bytes"}``; ``{"type": "copied", "bytes", "of"}`` from time
            to time; ``{"type": "done", "time", "paused_ms", "databases": [{"owner", "name", "bytes", "schema"}]}``
        :raises Conflict: another backup is under way
        :raises Unavailable: one of the owners is not there, or could not do its part; there is no backup then
        """
        await self._require_others()
        changed = asyncio.Event()
        sources = [_Source("kernel", self._copies.hold(backup))]
        sources += [_Source(owner, self._copies_of(owner, backup, seconds)) for owner in OTHERS]
        followers: list[asyncio.Task[None]] = []
        try:
            async with paused(self._databases, self._pause_limit_s) as pause:
                followers += [asyncio.create_task(source.follow(changed)) for source in sources]
                while not all(source.is_frozen for source in sources):
                    await _next_change(changed, sources)
                moment = {"time": self._now()}
            moment["paused_ms"] = round(pause.seconds * 1000, 1)
            _log.info("backup frozen", backup=backup, **moment)
            async for item in _progress(changed, sources, moment):
                yield item
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def _require_others(self) -> None:
        """Find out who is missing before anything is stopped."""
        for owner in OTHERS:
            try:
                await self._bus.call(f"{owner}.health", {}, timeout_s=_ASK_TIMEOUT_S)
            except HomeAgentError as error:
                raise _failed(owner, error) from error

    async def _copies_of(self, owner: str, backup: str, seconds: float) -> AsyncGenerator[Item, None]:
        async with self._bus.stream(f"{owner}.snapshot", {"backup": backup}, timeout_s=seconds) as items:
            async for item in items:
                yield item


class _Source:
    """One owner of databases, and how far its copies are."""

    def __init__(self, owner: str, items: AsyncGenerator[Item, None]) -> None:
        self.owner = owner
        self.is_frozen = False
        self.copied_bytes = 0
        self.of_bytes = 0
        self.databases: list[Item] | None = None
        self.error: HomeAgentError | None = None
        self._items = items

    async def follow(self, changed: asyncio.Event) -> None:
        """Take what comes until the end, which is either an error or that nobody wants the copies any more."""
        try:
            async with aclosing(self._items) as items:
                async for item in items:
                    self._take(item)
                    changed.set()
            self.error = _failed(self.owner, Unavailable(text("kernel.backup_ended")))
        except HomeAgentError as error:
            # An error of the kernel's own says all; of another's it must be said whose it is.
            self.error = error if self.owner == "kernel" else _failed(self.owner, error)
        finally:
            changed.set()

    def _take(self, item: Item) -> None:
        if item["type"] == FROZEN:
            self.is_frozen = True
            self.of_bytes = item["bytes"]
        elif item["type"] == COPIED:
            self.copied_bytes = item["bytes"]
        elif item["type"] == DONE:
            self.copied_bytes = self.of_bytes
            self.databases = [{"owner": self.owner, **database} for database in item["databases"]]


async def _next_change(changed: asyncio.Event, sources: Sequence[_Source]) -> None:
    await changed.wait()
    changed.clear()
    for source in sources:
        if source.error is not None:
            raise source.error


async def _progress(changed: asyncio.Event, sources: Sequence[_Source], moment: Item) -> AsyncIterator[Item]:
    of_bytes = sum(source.of_bytes for source in sources)
    yield {"type": FROZEN, **moment, "bytes": of_bytes}
    while not all(source.databases is not None for source in sources):
        await _next_change(changed, sources)
        yield {"type": COPIED, "bytes": sum(source.copied_bytes for source in sources), "of": of_bytes}
    databases = [database for source in sources for database in source.databases or []]
    yield {"type": DONE, **moment, "databases": databases}
    while True:
        await _next_change(changed, sources)


class Pause:
    """How long the writers were kept waiting; known when they go on."""

    seconds = 0.0


@asynccontextmanager
async def paused(databases: Sequence[Pausable], limit_s: float) -> AsyncIterator[Pause]:
    """Keep the writers of all databases between two transactions while the block runs.

    Whatever happens, they go on after ``limit_s`` seconds.

    :raises Unavailable: the block, or waiting for the writers, took longer: then they were not all paused to its end
    """
    over = threading.Event()
    loop = asyncio.get_running_loop()
    begun = [loop.create_future() for _ in databases]
    pauses = [
        asyncio.create_task(
            database.between_writes(partial(_pause, loop=loop, begun=future, over=over, limit_s=limit_s))
        )
        for database, future in zip(databases, begun, strict=True)
    ]
    pause = Pause()
    try:
        async with asyncio.timeout(limit_s):
            await _all_begun(begun, pauses)
            yield pause
    except TimeoutError as error:
        raise _too_slow(limit_s) from error
    finally:
        over.set()
        for future, waiting in zip(begun, pauses, strict=True):
            if not future.done():
                waiting.cancel()  # its turn comes later, and is over at once
        lengths = await asyncio.gather(*pauses, return_exceptions=True)
    if not all(isinstance(length, float) for length in lengths):
        raise _too_slow(limit_s)
    pause.seconds = max(length for length in lengths if isinstance(length, float))


async def _all_begun(begun: Sequence[asyncio.Future[None]], pauses: Sequence[asyncio.Task[float | None]]) -> None:
    waits: set[asyncio.Future[Any]] = set(pauses)
    for future in begun:
        await asyncio.wait({future, *waits}, return_when=asyncio.FIRST_COMPLETED)
        for pause in pauses:
            if pause.done():
                pause.result()
                raise TimeoutError


def _pause(
    connection: apsw.Connection,
    *,
    loop: asyncio.AbstractEventLoop,
    begun: asyncio.Future[None],
    over: threading.Event,
    limit_s: float,
) -> float | None:
    """Keep the writer thread; return for how many seconds, or None if nobody said in time that it may go on."""
    since = time.monotonic()
    loop.call_soon_threadsafe(lambda: None if begun.done() else begun.set_result(None))
    return time.monotonic() - since if over.wait(limit_s) else None


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(_BUSY_MS)
    return connection


def _failed(owner: str, error: HomeAgentError) -> Unavailable:
    return Unavailable(
        text("kernel.backup_failed", service=owner, reason=error.message),
        hint=error.hint or text("kernel.backup_failed_hint", service=owner),
        detail={"service": owner},
    )


def _too_slow(limit_s: float) -> Unavailable:
    return Unavailable(text("kernel.backup_too_slow", seconds=limit_s), hint=text("kernel.backup_too_slow_hint"))
