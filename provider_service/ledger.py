"""The usage ledger: one row for every call of a source, written by a thread of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw
import structlog

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Overloaded, Unavailable
from homeagent_sdk.migrations import Migration, migrate, online_backup
from homeagent_sdk.snapshots import Copies

T = TypeVar("T")
MAX_WAITING = 10_000
MAX_ROWS_ANSWERED = 1000
GATHER_S = 0.25
"""How long rows are gathered: a thread that wrote at once would take the interpreter from the next answer."""

KEPT_S = 400 * 86_400.0
"""How long rows are kept: a little over a year."""

MIGRATIONS = (
    Migration(
        1,
        "calls",
        """CREATE TABLE calls (
            id INTEGER PRIMARY KEY,
            time REAL NOT NULL,
            reason TEXT NOT NULL,
            turn_id TEXT,
            lane TEXT,
            source TEXT NOT NULL,
            model TEXT NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            total_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            reasoning_tokens INTEGER NOT NULL,
            reported INTEGER NOT NULL,
            first_piece_ms REAL,
            ms REAL NOT NULL,
            outcome TEXT NOT NULL,
            status INTEGER
        ) STRICT;
        CREATE INDEX calls_by_time ON calls (time);""",
    ),
)

_log = structlog.get_logger("provider_service.ledger")


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a source.

    :ivar time: when it ended, seconds since 1970
    :ivar reason: what the request was for
    :ivar reported: 1 if the source told the tokens, 0 if they are estimated
    :ivar first_piece_ms: until the first text, in milliseconds; None if none came
    :ivar outcome: ``ok``, ``partial``, ``cancelled``, or ``failed:`` and the kind of failure
    :ivar status: the HTTP status of a failure, if there was one
    """

    time: float
    reason: str
    turn_id: str | None
    lane: str | None
    source: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    reported: int
    first_piece_ms: float | None
    ms: float
    outcome: str
    status: int | None


_COLUMNS = tuple(CallRecord.__dataclass_fields__)
_INSERT = f"INSERT INTO calls ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"
_SUMS = """SELECT count(*) AS calls, ifnull(sum(prompt_tokens), 0) AS prompt_tokens,
    ifnull(sum(completion_tokens), 0) AS completion_tokens, ifnull(sum(total_tokens), 0) AS total_tokens,
    ifnull(sum(cached_tokens), 0) AS cached_tokens, ifnull(sum(reasoning_tokens), 0) AS reasoning_tokens,
    ifnull(sum(outcome = 'ok'), 0) AS ok"""


class Ledger:
    """The ledger. Recording never waits; where 10,000 rows wait already, further ones are dropped and counted.

    :param path: of the database
    """

    def __init__(self, path: Path) -> None:
        self.dropped = 0
        self.copies = Copies(path.parent / "backup", {path.name: lambda: _open(path)})
        """Makes copies of the database for a backup."""
        self._path = path
        self._jobs: queue.Queue[Callable[[apsw.Connection], None] | CallRecord | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        """Open the database and bring it up to date.

        :raises Unavailable: it cannot be opened
        """
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop, opened), name="ledger", daemon=True)
        self._thread.start()
        await opened

    async def close(self) -> None:
        """Write what waits and close."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.to_thread(self._jobs.put, None)
            await asyncio.to_thread(thread.join, 4.0)

    def record(self, record: CallRecord) -> None:
        """Have a row written soon."""
        try:
            self._jobs.put_nowait(record)
        except queue.Full:
            self.dropped += 1
            if self.dropped % 1000 == 1:
                _log.error("the usage ledger cannot keep up, rows are lost", dropped=self.dropped)

    async def usage(self, since: float) -> dict[str, Any]:
        """Return the calls since a time (seconds since 1970): the newest 1,000 rows, and sums over all.

        :raises Unavailable: the database cannot be read
        """
        return await self._ask(lambda connection: _usage(connection, since))

    async def _ask(self, question: Callable[[apsw.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def job(connection: apsw.Connection) -> None:
            try:
                _resolve(loop, answer, result=question(connection))
            except apsw.Error as error:
                _resolve(loop, answer, error=self._unusable(error))

        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Overloaded(text("provider.ledger_busy")) from None
        return await answer

    def _run(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._connect()
        except (apsw.Error, OSError) as error:
            _resolve(loop, opened, error=self._unusable(error))
            return
        except Exception as error:
            _resolve(loop, opened, error=error)
            return
        _resolve(loop, opened, result=None)
        try:
            while self._work(connection):
                pass
        finally:
            connection.close()

    def _connect(self) -> apsw.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = _open(self._path)
        # The system's temporary folder is out of reach for a confined process.
        connection.execute("PRAGMA temp_store=MEMORY")
        self._path.chmod(0o600)
        # One at a time: of several statements in one call, those after the first that gives a row are not run.
        for setting in ("journal_mode = WAL", "synchronous = NORMAL", "cache_size = -512"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        backup = self._path.with_name("usage.before-migration.db")
        migrate(connection, MIGRATIONS, before=lambda: _back_up(connection, backup))
        connection.execute("DELETE FROM calls WHERE time < ?", (time.time() - KEPT_S,))
        return connection

    def _work(self, connection: apsw.Connection) -> bool:
        """Do what comes, rows gathered for a moment and in one transaction; return whether to go on."""
        rows: list[CallRecord] = []
        job = self._jobs.get()
        write_at = time.monotonic() + GATHER_S
        while isinstance(job, CallRecord):
            rows.append(job)
            try:
                job = self._jobs.get(timeout=max(0.0, write_at - time.monotonic()))
            except queue.Empty:
                break
        if rows:
            self._write(connection, rows)
        if job is None:
            return False
        if not isinstance(job, CallRecord):
            job(connection)
        return True

    def _write(self, connection: apsw.Connection, rows: list[CallRecord]) -> None:
        try:
            with connection:
                connection.executemany(_INSERT, [asdict(row) for row in rows])
        except apsw.Error as error:
            self.dropped += len(rows)
            _log.error("the usage ledger cannot be written", path=str(self._path), problem=str(error), lost=len(rows))

    def _unusable(self, error: Exception) -> Unavailable:
        return Unavailable(
            text("provider.ledger_unusable", path=self._path, problem=str(error)), hint=text("provider.disk_hint")
        )


def _open(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5000)
    return connection


def _back_up(connection: apsw.Connection, target: Path) -> None:
    online_backup(connection, target)


def _usage(connection: apsw.Connection, since: float) -> dict[str, Any]:
    newest = f"SELECT {', '.join(_COLUMNS)} FROM calls WHERE time >= ? ORDER BY time DESC, id DESC LIMIT ?"
    grouped = (
        f"{_SUMS}, reason, source, model FROM calls WHERE time >= ? GROUP BY reason, source, model ORDER BY 1 DESC"
    )
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in connection.execute(newest, (since, MAX_ROWS_ANSWERED))]
    totals = _named(connection.execute(f"{_SUMS} FROM calls WHERE time >= ?", (since,)))[0]
    return {"rows": rows, "totals": {**totals, "by": _named(connection.execute(grouped, (since,)))}}


def _named(cursor: apsw.Cursor) -> list[dict[str, Any]]:
    names: list[str] = []
    found = []
    for row in cursor:
        names = names or [column[0] for column in cursor.get_description()]
        found.append(dict(zip(names, row, strict=True)))
    return found


def _resolve(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any = None, error: Exception | None = None
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        return
