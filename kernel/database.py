"""One SQLite database of the kernel: a writer thread that commits in groups, and a reader thread beside it.

The event loop never waits for the disk: it hands a function to one of the two threads and awaits its result. All writes
that wait when a transaction starts go into that transaction, so that a hundred of them cost one ``fsync``; each has its
own savepoint, so that one which fails takes nothing of the others with it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw
import structlog

from homeagent_sdk import write_ahead_log
from homeagent_sdk.errors import HomeAgentError, Overloaded, Unavailable
from homeagent_sdk.migrations import Migration, migrate, online_backup

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

_log = structlog.get_logger(__name__)
_BUSY_TIMEOUT_MS = 5_000
_STATEMENT_CACHE = 200
_LOG_ATTEMPTS = 100
_LOG_PAUSE_S = 0.05
_HINTS: tuple[tuple[type[Exception], str], ...] = (
    (apsw.FullError, "the disk is full: free some space there; it goes on by itself afterwards"),
    (apsw.ReadOnlyError, "make the file and its folder writable for the user that runs the kernel"),
    (apsw.PermissionsError, "make the file and its folder writable for the user that runs the kernel"),
    (apsw.CantOpenError, "check that the folder exists and that the user that runs the kernel may write there"),
    (apsw.CorruptError, "stop the kernel, keep a copy of the file, and put back the newest backup beside it"),
    (apsw.NotADBError, "the file is not a database: move it away, or put back the newest backup beside it"),
    (apsw.IOError, "check the disk: is it full, mounted and healthy? The system log (dmesg) may say more"),
    (apsw.BusyError, "another program holds the database: is a second kernel running on this data directory?"),
    (apsw.LockedError, "another program holds the database: is a second kernel running on this data directory?"),
)
_STORAGE_ERRORS = tuple(kind for kind, _ in _HINTS)


_NO_TEMPORARY_FILES = "PRAGMA temp_store=MEMORY"
"""SQLite puts statement journals and large sorts into the system's temporary folder, which a confined kernel cannot
reach: a write failed with "unable to open database file" as soon as two of them met."""


@dataclass(slots=True)
class _Request(Generic[T]):
    work: Work[T]
    future: asyncio.Future[T]
    is_transaction: bool = True
    result: T | None = None
    error: BaseException | None = None


class _Worker(ABC):
    """A thread with one connection and a bounded queue; subclasses say how a batch of requests is run."""

    def __init__(self, name: str, open_connection: Callable[[], apsw.Connection], path: Path, limit: int) -> None:
        self._name = name
        self._open_connection = open_connection
        self._path = path
        self._limit = limit
        self._waiting = 0  # counted on the event loop alone, so that it needs no lock
        self._queue: queue.SimpleQueue[_Request[Any] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._connection: apsw.Connection | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._waiting

    async def do(self, work: Work[T], *, is_transaction: bool = True) -> T:
        if self._waiting >= self._limit:
            raise Overloaded(
                f"{self._waiting} requests already wait for {self._path}",
                hint="try again in a moment; if this lasts, the disk is too slow or hangs",
            )
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting += 1
        self._queue.put(_Request(work, future, is_transaction))
        return await future

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            batch: list[_Request[Any]] = []
            request = self._queue.get()
            while request is not None:
                batch.append(request)
                try:
                    request = self._queue.get_nowait()
                except queue.Empty:
                    break
            stopping = request is None
            if batch:
                self._run_safely(batch)
                self._hand_back(batch)
        self._drop_connection()

    def _run_safely(self, batch: list[_Request[Any]]) -> None:
        try:
            if self._connection is None:
                self._connection = self._open_connection()
            self._run(self._connection, batch)
        except BaseException as error:
            if isinstance(error, (apsw.IOError, apsw.CantOpenError, apsw.CorruptError, apsw.NotADBError)):
                # A file that was put back, or a disk that was mounted again, is only seen by a new connection.
                self._drop_connection()
            for request in batch:
                request.error = request.error or storage_error(error, self._path)

    @abstractmethod
    def _run(self, connection: apsw.Connection, batch: list[_Request[Any]]) -> None:
        """Run a batch of requests and set their results or errors."""

    def _hand_back(self, batch: list[_Request[Any]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, batch)
        except RuntimeError:
            _log.warning("database_loop_gone", path=str(self._path), results=len(batch))

    def _deliver(self, batch: list[_Request[Any]]) -> None:
        self._waiting -= len(batch)
        for request in batch:
            if request.future.done():
                continue  # its caller was cancelled; the work itself was done all the same
            if request.error is not None:
                request.future.set_exception(request.error)
            else:
                request.future.set_result(request.result)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except apsw.Error as error:
            _log.warning("database_close_failed", path=str(self._path), error=str(error))


class _Writer(_Worker):
    transactions = 0

    def _run(self, connection: apsw.Connection, batch: list[_Request[Any]]) -> None:
        if together := [request for request in batch if request.is_transaction]:
            self._run_together(connection, together)
        for request in batch:
            if not request.is_transaction:
                self._run_outside(connection, request)

    def _run_outside(self, connection: apsw.Connection, request: _Request[Any]) -> None:
        try:
            request.result = request.work(connection)
        except apsw.Error as error:
            # What came before in this batch is committed, whatever becomes of this.
            request.error = storage_error(error, self._path)

    def _run_together(self, connection: apsw.Connection, batch: list[_Request[Any]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for request in batch:
                self._run_one(connection, request)
            connection.execute("COMMIT")
            self.transactions += 1
        except BaseException:
            # A full disk may have made SQLite roll back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _run_one(self, connection: apsw.Connection, request: _Request[Any]) -> None:
        connection.execute("SAVEPOINT request")
        try:
            request.result = request.work(connection)
        except _STORAGE_ERRORS:
            raise
        except Exception as error:
            request.error = error
            connection.execute("ROLLBACK TO request")
        connection.execute("RELEASE request")


class _Reader(_Worker):
    def _run(self, connection: apsw.Connection, batch: list[_Request[Any]]) -> None:
        for request in batch:
            try:
                request.result = request.work(connection)
            except _STORAGE_ERRORS:
                raise
            except Exception as error:
                request.error = error


class Database:
    """A database file with its writer and its reader; opened by its owner, at start, on the running event loop.

    :param path: the file; made with its folder if it does not exist, readable by its owner only
    :param migrations: the whole schema, forward only; the file is backed up beside itself before an upgrade
    :param queue_limit: how many requests may wait for each of the two threads before :class:`Overloaded` is raised
    """

    def __init__(self, path: Path, migrations: Sequence[Migration], *, queue_limit: int = 4096) -> None:
        self.path = path
        self._migrations = tuple(migrations)
        self._queue_limit = queue_limit
        self._writer: _Writer | None = None
        self._reader: _Reader | None = None

    @property
    def waiting(self) -> int:
        """How many writes wait or are under way."""
        return self._writer.waiting if self._writer is not None else 0

    @property
    def transactions(self) -> int:
        """How many transactions were committed since the start."""
        return self._writer.transactions if self._writer is not None else 0

    async def open(self) -> None:
        """Make the file if need be, bring its schema to the newest version, start the two threads.

        :raises Unavailable: the file cannot be opened, read or written; the message has its path, the hint what to do
        :raises Conflict: the file was made by a newer program
        """
        await asyncio.to_thread(self._prepare)
        name = self.path.stem
        self._writer = _Writer(f"{name}-writer", self._connect, self.path, self._queue_limit)
        self._reader = _Reader(f"{name}-reader", self._connect_to_read, self.path, self._queue_limit)
        try:
            # Both touch the file now: a disk that fills up later has no room for what a first access makes.
            await self._writer.do(_touch)
            await self._reader.do(_touch)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what waits, close the file; safe to call twice."""
        writer, self._writer = self._writer, None
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        if writer is not None:
            await writer.close()

    async def write(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction; when this returns, what it wrote survives a power cut.

        :param work: called in the writer thread, inside a transaction shared with others; if it raises, only its own
            changes are undone. If the caller is cancelled while it waits, the work may still be done
        :raises Overloaded: the queue is full
        :raises Unavailable: the disk is full, read-only or broken; nothing of ``work`` was kept
        """
        if self._writer is None:
            raise _closed(self.path)
        return await self._writer.do(work)

    async def read(self, work: Work[T]) -> T:
        """Run ``work`` in the reader thread, on what was committed before; it cannot write.

        :raises Overloaded: the queue is full
        :raises Unavailable: the file cannot be read
        """
        if self._reader is None:
            raise _closed(self.path)
        return await self._reader.do(work)

    async def between_writes(self, work: Work[T]) -> T:
        """Run ``work`` in the writer thread, outside any transaction: what was written before it is committed, and what
        comes after it waits until it is done.

        :raises Overloaded: the queue is full
        :raises Unavailable: the file cannot be opened
        """
        if self._writer is None:
            raise _closed(self.path)
        return await self._writer.do(work, is_transaction=False)

    async def empty_log(self) -> bool:
        """Move the write-ahead log into the file and cut it to nothing, so that no earlier state is left in it.

        :returns: False if the reader held it all the time, for several seconds
        """
        for _ in range(_LOG_ATTEMPTS):
            if await self.between_writes(partial(write_ahead_log.empty, busy_ms=_BUSY_TIMEOUT_MS)):
                return True
            await asyncio.sleep(_LOG_PAUSE_S)
        return False

    def _prepare(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # SQLite gives its -wal and -shm files the mode of the database, so it must be private from the start.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise Unavailable(
                f"{self.path} cannot be opened: {error.strerror or error}",
                hint="check that the folder exists, has room and is writable for the user that runs the kernel",
            ) from error
        try:
            connection = self._connect()
            try:
                upgrades: list[Path] = []
                migrate(connection, self._migrations, before=lambda: upgrades.append(self._back_up(connection)))
                if upgrades:
                    # An earlier program did not write over what it deleted.
                    connection.execute("VACUUM")
            finally:
                connection.close()
        except (apsw.Error, HomeAgentError) as error:
            raise storage_error(error, self.path) from error

    def _back_up(self, connection: apsw.Connection) -> Path:
        target = self.path.with_name(f"{self.path.name}.before-upgrade")
        online_backup(connection, target)
        _log.info("database_backed_up", path=str(self.path), backup=str(target))
        return target

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), statementcachesize=_STATEMENT_CACHE)
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # takes effect in a new file only
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA secure_delete=ON")  # what is replaced or deleted is written over in the file
        connection.execute(_NO_TEMPORARY_FILES)
        return connection

    def _connect_to_read(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), statementcachesize=_STATEMENT_CACHE)
        connection.set_busy_timeout(_BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA query_only=ON")
        connection.execute(_NO_TEMPORARY_FILES)
        return connection


def _touch(connection: apsw.Connection) -> None:
    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()


def storage_error(error: BaseException, path: Path) -> BaseException:
    """Return :class:`Unavailable` with the path and what to do if the storage is at fault, else ``error`` itself."""
    cause: BaseException | None = error
    while cause is not None:
        for kind, hint in _HINTS:
            if isinstance(cause, kind):
                return Unavailable(f"{path} cannot be used: {cause}", hint=hint, detail={"path": str(path)})
        cause = cause.__cause__
    return error


def _closed(path: Path) -> Unavailable:
    return Unavailable(f"{path} is closed", hint="the kernel is starting or stopping; try again in a moment")
