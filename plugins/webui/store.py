"""``webui.db``: what has to outlive a restart of the plugin. One connection, used by one thread."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from homeagent_sdk.errors import Unavailable
from homeagent_sdk.migrations import Migration, migrate

from .history_index import POINTS, Point

IDEMPOTENCY_S = 24 * 3600
"""How long an ``Idempotency-Key`` is remembered."""

IDEMPOTENCY_KEYS = 10_000

_WAITING_WRITES = 1_000
_SWEEP_EVERY = 256

_MIGRATIONS = [
    Migration(
        1,
        "points of conversations, idempotency keys",
        """
        CREATE TABLE point (
            digest BLOB NOT NULL,
            conversation TEXT NOT NULL,
            is_head INTEGER NOT NULL,
            used_at REAL NOT NULL,
            PRIMARY KEY (digest, conversation)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX point_by_use ON point (used_at);
        CREATE INDEX point_by_conversation ON point (conversation) WHERE is_head;
        CREATE TABLE idempotency (
            key BLOB PRIMARY KEY,
            body BLOB NOT NULL,
            made_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX idempotency_by_age ON idempotency (made_at);
        """,
    )
]

Result = TypeVar("Result")


class Store:
    """The plugin's database. Failures of the disk are :class:`Unavailable`, with the path.

    :param log: a structlog logger
    """

    def __init__(self, path: Path, log: Any, wall: Callable[[], float] = time.time) -> None:
        self._path = path
        self._log = log
        self._wall = wall
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="webui-db")
        self._connection: sqlite3.Connection | None = None
        self._waiting = 0
        self._writes = 0
        self.dropped = 0
        """Points that were not kept; costs the recognition of their conversations after a restart."""

    async def open(self) -> list[Point]:
        """Open the database and return the points it holds, the one used longest ago first."""
        return await self._run(self._open)

    async def close(self) -> None:
        """Write what waits, and close."""
        await self._run(self._close)
        self._thread.shutdown(wait=False)

    def keep(self, points: Sequence[Point]) -> None:
        """Write points soon, without waiting for it. Where 1,000 writes wait already, they are dropped and counted."""
        if self._waiting >= _WAITING_WRITES:
            self._drop(points, f"{self._waiting} writes wait already")
            return
        self._waiting += 1
        # Handed to the thread here and now, so that a close() right after it comes after it.
        written = asyncio.get_running_loop().run_in_executor(self._thread, self._keep, points)
        written.add_done_callback(lambda done: self._on_written(points, done))

    async def claim_key(self, key: bytes, body: bytes) -> bool:
        """Bind an idempotency key to the body that it first came with; false if it is bound to another."""
        return await self._run(lambda: self._claim_key(key, body))

    async def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(
                f"{self._path} cannot be used: {error}", hint="check that the disk has room and the file is writable"
            ) from error

    def _on_written(self, points: Sequence[Point], written: asyncio.Future[None]) -> None:
        self._waiting -= 1
        error = None if written.cancelled() else written.exception()
        if error is not None:
            self._drop(points, str(error))

    def _drop(self, points: Sequence[Point], reason: str) -> None:
        self.dropped += len(points)
        self._log.warning("a conversation will not be recognised after a restart", reason=reason, dropped=self.dropped)

    def _open(self) -> list[Point]:
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        # From here on close() closes it, also if what follows fails.
        connection = self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA busy_timeout = 5000")
        migrate(connection, _MIGRATIONS)
        self._sweep(connection)
        rows = connection.execute("SELECT digest, conversation, is_head FROM point ORDER BY used_at")
        return [Point(digest, conversation, bool(is_head)) for digest, conversation, is_head in rows]

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the database is closed")
        return self._connection

    def _keep(self, points: Sequence[Point]) -> None:
        connection = self._opened()
        now = self._wall()
        connection.execute("BEGIN IMMEDIATE")
        try:
            for point in points:
                connection.execute("UPDATE point SET is_head = 0 WHERE conversation = ?", (point.conversation,))
                connection.execute(
                    "INSERT INTO point VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET is_head = excluded.is_head,"
                    " used_at = excluded.used_at",
                    (point.digest, point.conversation, point.is_head, now),
                )
            self._writes += 1
            if self._writes % _SWEEP_EVERY == 0:
                self._sweep(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _claim_key(self, key: bytes, body: bytes) -> bool:
        connection = self._opened()
        now = self._wall()
        self._writes += 1
        if self._writes % _SWEEP_EVERY == 0:
            self._sweep(connection)
        connection.execute("DELETE FROM idempotency WHERE key = ? AND made_at < ?", (key, now - IDEMPOTENCY_S))
        connection.execute("INSERT OR IGNORE INTO idempotency VALUES (?, ?, ?)", (key, body, now))
        found = connection.execute("SELECT body FROM idempotency WHERE key = ?", (key,)).fetchone()
        return bool(found[0] == body)

    def _sweep(self, connection: sqlite3.Connection) -> None:
        """Forget what is over the bounds."""
        connection.execute("DELETE FROM idempotency WHERE made_at < ?", (self._wall() - IDEMPOTENCY_S,))
        for table, age, bound in (("point", "used_at", POINTS), ("idempotency", "made_at", IDEMPOTENCY_KEYS)):
            connection.execute(
                f"DELETE FROM {table} WHERE {age} <= "
                f"(SELECT {age} FROM {table} ORDER BY {age} DESC LIMIT 1 OFFSET {bound})"
            )
