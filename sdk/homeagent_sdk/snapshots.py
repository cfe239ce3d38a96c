"""Databases as they were at one moment, copied at leisure while others go on writing to them.

A connection that is inside a read transaction goes on seeing what was committed when it began (SQLite's write-ahead
log keeps it), and copies exactly that. So several databases can be frozen at one moment, which takes no longer than to
begin these transactions, and be copied afterwards.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from homeagent_sdk._sqlite import database_errors, path_of
from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from homeagent_sdk.paths import flush

T = TypeVar("T")
_log = structlog.get_logger("backup")
FROZEN: Final = "frozen"
COPIED: Final = "copied"
DONE: Final = "done"

_SLICE_PAGES: Final = 128
_FLUSH_EVERY_BYTES: Final = 4 * 1024 * 1024
"""The disk is given the copy in small parts: one large flush at the end would hold up what others must flush."""
_TELL_EVERY_S: Final = 0.1


class Snapshot:
    """One database, as of the moment at which this was made; used in one thread.

    :param connection: newly opened, of :mod:`apsw` or of :mod:`sqlite3` with ``isolation_level=None``; handed over. The
        database must be in WAL mode, else whoever writes to it waits until :meth:`close`
    :raises Unavailable: the database cannot be read
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._failures: tuple[type[Exception], ...] = (OSError, *database_errors(connection))
        self.path = path_of(connection)
        try:
            connection.execute("BEGIN")
            # The transaction, and with it the moment that is kept, begins with the first look.
            self._pages, self._page_bytes = _size(connection)
            self.schema_version = _schema_version(connection)
        except self._failures as error:
            connection.close()
            raise Unavailable(
                f"{self.path} cannot be read: {error}", hint="see what `homeagent doctor` says"
            ) from error

    @property
    def size_bytes(self) -> int:
        """How large the copy will be."""
        return self._pages * self._page_bytes

    def copy_to(self, target: Path) -> Generator[int, None, None]:
        """Copy the database into a new file that only its owner can read, slice by slice, and flush it to the disk.

        :param target: removed again if the copy fails or is given up
        :returns: an iterator over how many bytes are copied; each step does a part of the work
        :raises Conflict: there is something under the name of the target
        :raises Unavailable: it cannot be written, or the database cannot be read
        """
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError as error:
            raise Conflict(f"{target} exists already", hint="choose another name") from error
        except OSError as error:
            raise self._failed(target, error) from error
        is_whole = False
        try:
            for pages in self._copied_pages(target):
                yield pages * self._page_bytes
            flush(target)
            is_whole = True
        except self._failures as error:
            raise self._failed(target, error) from error
        finally:
            if not is_whole:
                target.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the moment; the write-ahead log can be cleared again."""
        self._connection.close()

    def _copied_pages(self, target: Path) -> Iterator[int]:
        if isinstance(self._connection, sqlite3.Connection):
            with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                self._connection.backup(copy)
            yield self._pages
            return
        with closing(type(self._connection)(str(target))) as copy:
            # A copy that is not whole is thrown away: there is nothing to roll back to.
            for setting in ("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"):
                list(copy.execute(f"PRAGMA {setting}"))
            yield from self._step_through(copy, target)

    def _step_through(self, copy: Any, target: Path) -> Iterator[int]:
        flushed = 0
        with copy.backup("main", self._connection, "main") as backup:
            while not backup.done:
                backup.step(_SLICE_PAGES)
                copied = backup.page_count - backup.remaining
                if (copied - flushed) * self._page_bytes >= _FLUSH_EVERY_BYTES:
                    flush(target)
                    flushed = copied
                yield copied

    def _failed(self, target: Path, error: Exception) -> Unavailable:
        return Unavailable(
            f"{self.path} could not be copied to {target}: {error}",
            hint=f"check that the disk is healthy and has room for {self.size_bytes / 1024 / 1024:.0f} MB more",
        )


class Copies:
    """Makes copies of a service's databases in the service's own folder, for a backup that somebody else collects.

    :param folder: where the copies lie as long as they are wanted; nothing else may lie there
    :param databases: how to open each database anew, by the name that its copy gets; called in a thread
    """

    def __init__(self, folder: Path, databases: Mapping[str, Callable[[], Any]]) -> None:
        self._folder = folder
        self._databases = databases
        self._is_busy = False

    def clear(self) -> None:
        """Remove what a backup that was killed has left; called once, before the first :meth:`hold`."""
        _try_to_remove(self._folder)

    async def hold(self, backup: str) -> AsyncGenerator[dict[str, Any], None]:
        """Freeze the databases, copy them, and keep the copies until the iterator is closed.

        :param backup: a name for the backup: letters, digits and ``-_`` only
        :returns: first ``{"type": "frozen", "bytes"}``, from which on nothing that is written is in the copies; then
            ``{"type": "copied", "bytes", "of"}`` from time to time; then ``{"type": "done", "databases": [{"name",
            "bytes", "schema"}]}``, the copies lying in ``folder/backup/name``, and no end: they vanish when the
            iterator is closed
        :raises Conflict: another backup is under way
        :raises Unavailable: a database cannot be read, or its copy cannot be written
        :raises Invalid: the name is none
        """
        if not backup or not all(letter.isalnum() or letter in "-_" for letter in backup) or not backup.isascii():
            raise Invalid("the name of a backup consists of letters, digits, - and _", field="backup")
        if self._is_busy:
            raise Conflict("another backup is under way", hint="wait until it is done")
        self._is_busy = True
        run = _Run(self._folder / backup, self._databases)
        try:
            async with aclosing(run.items()) as items:
                async for item in items:
                    yield item
            await asyncio.Event().wait()
        finally:
            await run.end()
            self._is_busy = False


class _Run:
    """One backup: all its work is done in a thread of its own, one piece after another."""

    def __init__(self, folder: Path, databases: Mapping[str, Callable[[], Any]]) -> None:
        self._folder = folder
        self._databases = databases
        self._snapshots: dict[str, Snapshot] = {}
        self._copying: Iterator[int] = iter(())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="backup")

    async def items(self) -> AsyncGenerator[dict[str, Any], None]:
        await self._do(self._freeze)
        total = sum(snapshot.size_bytes for snapshot in self._snapshots.values())
        yield {"type": FROZEN, "bytes": total}
        before, told = 0, time.monotonic()
        for name, snapshot in self._snapshots.items():
            self._copying = snapshot.copy_to(self._folder / name)
            while (copied := await self._do(partial(next, self._copying, None))) is not None:
                if time.monotonic() - told >= _TELL_EVERY_S:
                    told = time.monotonic()
                    yield {"type": COPIED, "bytes": before + copied, "of": total}
            before += snapshot.size_bytes
        yield {"type": DONE, "databases": await self._do(self._finish)}

    async def end(self) -> None:
        """Let go of everything; waits for the slice that is being copied."""
        await self._do(self._clean)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _freeze(self) -> None:
        for name, open_connection in self._databases.items():
            self._snapshots[name] = Snapshot(open_connection())
        try:
            _remove(self._folder.parent)
            self._folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise Unavailable(
                f"{self._folder} cannot be made: {error.strerror}", hint="check that the disk is writable and has room"
            ) from error

    def _finish(self) -> list[dict[str, Any]]:
        """Flush the names of the copies, and let the databases go on as before."""
        flush(self._folder)
        made = [
            {
                "name": name,
                "bytes": (self._folder / name).stat().st_size,
                "schema": snapshot.schema_version,
            }
            for name, snapshot in self._snapshots.items()
        ]
        self._release()
        return made

    def _release(self) -> None:
        while self._snapshots:
            self._snapshots.popitem()[1].close()

    def _clean(self) -> None:
        close = getattr(self._copying, "close", None)
        if close is not None:
            close()
        self._release()
        _try_to_remove(self._folder.parent)


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _try_to_remove(folder: Path) -> None:
    try:
        _remove(folder)
    except OSError as error:
        # No reason to fail: the next backup, or the next start, tries it again.
        _log.warning("copies of a backup are left", path=str(folder), reason=str(error))


def _size(connection: Any) -> tuple[int, int]:
    list(connection.execute("SELECT 1 FROM sqlite_master LIMIT 1"))
    ((pages,),) = connection.execute("PRAGMA page_count")
    ((page_bytes,),) = connection.execute("PRAGMA page_size")
    return int(pages), int(page_bytes)


def _schema_version(connection: Any) -> int:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'")
    if not list(found):
        return 0
    ((version,),) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version")
    return int(version)
