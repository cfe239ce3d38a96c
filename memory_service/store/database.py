"""``memory.db`` as its owner uses it: one writing thread with two lanes, reading threads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Self, TypeVar

import apsw

from homeagent_sdk import write_ahead_log
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Unavailable
from homeagent_sdk.migrations import migrate, online_backup
from memory_service.store.connection import BUSY_MS, open_for_writing, translated
from memory_service.store.reader import Readers
from memory_service.store.schema import MIGRATIONS
from memory_service.store.tidying import Tidying
from memory_service.store.writer import Writer

T = TypeVar("T")

_LOG_ATTEMPTS = 100
_LOG_PAUSE_S = 0.05
_LONGEST_WAY_S = 0.05


class Database:
    """Runs functions on connections to one database; the parts of the store are made of such functions.

    :ivar path: the file, named in every error
    """

    def __init__(self, path: Path, writer: Writer, readers: Readers, tidying: Tidying, lock: IO[bytes]) -> None:
        self.path = path
        self._writer = writer
        self._tidying = tidying
        self._readers = readers
        self._lock = lock
        self._live = 0
        self._is_quiet = asyncio.Event()

    @classmethod
    def open(cls, path: Path, prepare: Callable[[apsw.Connection], None]) -> Self:
        """Open the database, making or upgrading it as needed; blocks, so call it before the event loop runs.

        Before an upgrade the database is copied to ``<name>.before-<version>.bak`` beside it.

        :param prepare: called with each reading connection
        :raises Conflict: another memory service uses it, or it was made by a newer program
        :raises Unavailable: it cannot be opened, is not a database or is damaged; it is left as it was
        """
        lock = _lock(path.with_name(f"{path.name}.lock"))
        try:
            with translated(path):
                connection = open_for_writing(path)
                try:
                    backup = path.with_name(f"{path.name}.before-{len(MIGRATIONS)}.bak")
                    migrate(connection, MIGRATIONS, before=lambda: _back_up(connection, backup))
                    _touch_tables(connection)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            lock.close()
            raise
        tidying = Tidying(path, connection)
        return cls(path, Writer(connection, path, tidying=tidying), Readers(path, prepare), tidying, lock)

    async def read(self, question: Callable[[apsw.Connection], T]) -> T:
        """Run a question on a reading connection, in a thread; it never waits for a writer.

        :raises Overloaded: too many wait already
        :raises Unavailable: the database cannot be read
        """
        return await self._readers.run(question)

    async def write(self, work: Callable[[apsw.Connection], T], *, bulk: bool = False) -> T:
        """Run a piece of work in the writing thread, all or nothing; it is safe on the medium when this returns.

        :param work: runs inside a transaction, perhaps twice: the first time may have been rolled back with others
        :param bulk: it gives way to all that is not bulk, and gets a commit of its own. Its author keeps it under
            20 ms, since what arrives meanwhile waits for it
        :raises Overloaded: too much waits already
        :raises Unavailable: the database cannot be written, or is closing
        """
        if bulk:
            return await self._written(work, bulk=True)
        self._live += 1
        self._is_quiet.clear()
        try:
            return await self._written(work, bulk=False)
        finally:
            self._live -= 1
            if self._live == 0:
                self._is_quiet.set()

    async def _written(self, work: Callable[[apsw.Connection], T], *, bulk: bool) -> T:
        result: T = await asyncio.wrap_future(self._writer.submit(work, bulk=bulk))
        return result

    async def give_way(self) -> None:
        """Let others have their turn, and wait for live writes under way, 50 ms at most.

        For bulk work that keeps the processor busy before it is written: the writer needs the interpreter's lock a
        dozen times in a transaction, and would wait for it each time.
        """
        await asyncio.sleep(0)
        if self._live:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_quiet.wait(), _LONGEST_WAY_S)

    async def empty_log(self) -> bool:
        """Move the write-ahead log into the database and cut it to nothing, so that no earlier state is left in it.

        :returns: False if questions held it all the time, for several seconds
        """
        for _ in range(_LOG_ATTEMPTS):
            if await asyncio.wrap_future(self._writer.submit_outside(partial(write_ahead_log.empty, busy_ms=BUSY_MS))):
                return True
            await asyncio.sleep(_LOG_PAUSE_S)
        return False

    def health(self) -> dict[str, object]:
        """Say how the database is, at once and without touching the medium."""
        reason = self._writer.failure or self._readers.failure
        return {
            "state": "failed" if reason else "running",
            "reason": reason,
            "waiting": self._writer.waiting,
            "path": str(self.path),
        }

    async def close(self) -> None:
        """Finish what was accepted, and close."""
        await asyncio.to_thread(self._tidying.close)
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._writer.close)
        self._lock.close()


def _touch_tables(connection: apsw.Connection) -> None:
    """Read the beginning of every table, so that a file damaged there is refused at start, not at the first turn."""
    for question in (
        "SELECT * FROM event ORDER BY number DESC LIMIT 1",
        "SELECT * FROM audience_member LIMIT 1",
        "SELECT * FROM document ORDER BY number DESC LIMIT 1",
        "SELECT * FROM relation ORDER BY number DESC LIMIT 1",
        "SELECT * FROM event_vocabulary LIMIT 1",
    ):
        list(connection.execute(question))


def _back_up(connection: apsw.Connection, target: Path) -> None:
    online_backup(connection, target)


def _lock(path: Path) -> IO[bytes]:
    """Take the lock that says which process owns the database; it is released when the process ends, however."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
    except OSError as error:
        raise Unavailable(
            text("memory.cannot_open", path=path, error=error.strerror), hint=text("memory.permission_hint")
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise Conflict(text("memory.in_use", path=path.parent), hint=text("memory.in_use_hint")) from error
    return file
