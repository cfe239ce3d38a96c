"""The timers on disk."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path

from homeagent_sdk.migrations import Migration, migrate

MIGRATIONS = (
    Migration(
        1,
        "timers",
        """
        CREATE TABLE timers (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            due REAL NOT NULL,
            repeat TEXT NOT NULL,
            message TEXT NOT NULL,
            channel TEXT NOT NULL,
            conversation TEXT NOT NULL,
            principal TEXT NOT NULL,
            origin TEXT NOT NULL UNIQUE,
            problem TEXT NOT NULL DEFAULT ''
        ) STRICT;
        CREATE INDEX timers_due ON timers (due);
        """,
    ),
)
_COLUMNS = "id, due, repeat, message, channel, conversation, principal, problem"


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer. ``id`` is never used again, so that id and due time name one firing for ever."""

    id: int
    due: float
    """Wall clock, seconds since 1970."""
    repeat: str
    """``daily``, ``weekly``, a duration, or empty."""
    message: str
    channel: str
    conversation: str
    principal: str
    problem: str = ""
    """Why the agent will not take it; it stays in the list until cancelled."""

    @property
    def delivery_id(self) -> str:
        """The id under which this firing may be submitted again and again."""
        return f"timer-{self.id}-{self.due:.3f}"


class TimerStore:
    """The database; what it is told is on disk when a method returns. Every method blocks: call it in a thread."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        migrate(self._connection, MIGRATIONS)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._connection.close()

    def add(self, timer: Timer, origin: str, most: int) -> Timer | None:
        """Store a new timer and return it with its id; None if there are ``most`` already.

        :param origin: names the call that set it: the same call made again gets the same timer
        """
        values = (
            timer.due, timer.repeat, timer.message, timer.channel, timer.conversation, timer.principal, origin
        )  # fmt: skip
        with self._lock:
            known = self._select("WHERE origin = ?", origin)
            if known:
                return known[0]
            (count,) = self._connection.execute("SELECT count(*) FROM timers").fetchone()
            if count >= most:
                return None
            self._connection.execute(
                "INSERT INTO timers (due, repeat, message, channel, conversation, principal, origin)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            return self._select("WHERE origin = ?", origin)[0]

    def of(self, principal: str) -> list[Timer]:
        """Return a principal's timers, the next one first."""
        with self._lock:
            return self._select("WHERE principal = ? ORDER BY due, id", principal)

    def waiting(self) -> list[Timer]:
        """Return all timers that are to fire, the next one first."""
        with self._lock:
            return self._select("WHERE problem = '' ORDER BY due, id")

    def remove(self, timer_id: int, principal: str) -> Timer | None:
        """Remove a principal's timer and return it; None if they have no such timer."""
        with self._lock:
            found = self._select("WHERE id = ? AND principal = ?", timer_id, principal)
            self._connection.execute("DELETE FROM timers WHERE id = ? AND principal = ?", (timer_id, principal))
            return found[0] if found else None

    def fired(self, timer: Timer, then_due: float | None) -> None:
        """Record that the agent has accepted a firing: the timer goes, or is set to its next time."""
        with self._lock:
            if then_due is None:
                self._connection.execute("DELETE FROM timers WHERE id = ? AND due = ?", (timer.id, timer.due))
            else:
                self._connection.execute(
                    "UPDATE timers SET due = ? WHERE id = ? AND due = ?", (then_due, timer.id, timer.due)
                )

    def refused(self, timer: Timer, problem: str) -> None:
        """Record that the agent will never take a firing."""
        with self._lock:
            self._connection.execute("UPDATE timers SET problem = ? WHERE id = ?", (problem, timer.id))

    def _select(self, rest: str, *values: object) -> list[Timer]:
        rows = self._connection.execute(f"SELECT {_COLUMNS} FROM timers {rest}", values)
        return [Timer(*row) for row in rows]
