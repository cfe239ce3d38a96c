"""How ``memory.db`` is opened, and what SQLite's complaints mean for a person."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Internal, Unavailable
from memory_service.model import estimated_tokens
from memory_service.store import old_tokenizer

BUSY_MS = 5_000
"""So long a connection waits for another process that holds the file."""

_CACHE_KB = 16_000
"""Of each reading connection, filled as it is used: with SQLite's 2,000 a search takes 15 % longer."""

_MEANINGS: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (apsw.FullError, "memory.full", "memory.full_hint"),
    (apsw.IOError, "memory.disk_error", "memory.disk_error_hint"),
    (apsw.NotADBError, "memory.not_a_database", "memory.broken_hint"),
    (apsw.CorruptError, "memory.broken", "memory.broken_hint"),
    (apsw.CantOpenError, "memory.cannot_open", "memory.permission_hint"),
    (apsw.ReadOnlyError, "memory.cannot_write", "memory.permission_hint"),
    (apsw.PermissionsError, "memory.cannot_open", "memory.permission_hint"),
    (apsw.AuthError, "memory.cannot_open", "memory.permission_hint"),
    (apsw.BusyError, "memory.locked", "memory.locked_hint"),
    (apsw.NoMemError, "memory.no_memory_left", "memory.no_memory_left_hint"),
)
"""What an error of SQLite's says about the medium: the texts for what it is and what to do."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite raises inside the block into a typed error that names the file and says what to do."""
    try:
        yield
    except apsw.Error as error:
        raise explain(error, path) from error


def explain(error: apsw.Error, path: Path) -> HomeAgentError:
    """Return the typed error for one of SQLite's; one that says nothing of the medium is a mistake of ours."""
    detail = {"path": str(path)}
    for kind, what, hint in _MEANINGS:
        if isinstance(error, kind):
            return Unavailable(text(what, path=path, error=error), hint=text(hint), detail=detail)
    return Internal(
        text("memory.unexpected", path=path, error=repr(error)), hint=text("memory.unexpected_hint"), detail=detail
    )


def open_for_writing(path: Path) -> apsw.Connection:
    """Open the database, or make it."""
    return _open(path, "journal_mode = WAL", "synchronous = FULL", "secure_delete = ON")


def open_for_reading(path: Path) -> apsw.Connection:
    """Open a database that exists; it sees what is committed and never waits for the writer."""
    # Not opened read-only: such a connection could not recover the write-ahead log after a crash.
    return _open(path, "query_only = ON", f"cache_size = -{_CACHE_KB}")


def _open(path: Path, *settings: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_MS)
        # The first to read the file: where that is no database, it says so; the tokenizer would only say "no FTS5".
        list(connection.execute("SELECT name FROM sqlite_schema"))
        old_tokenizer.register(connection)
        connection.create_scalar_function("estimated_tokens", _tokens, 1, deterministic=True)
        connection.create_scalar_function("digest_of", _digest, 1, deterministic=True)
        for setting in ("foreign_keys = ON", "temp_store = MEMORY", *settings):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _tokens(*values: apsw.SQLiteValue) -> int:
    return sum(estimated_tokens(str(value)) for value in values)


def _digest(*values: apsw.SQLiteValue) -> bytes:
    return hashlib.sha256("".join(map(str, values)).encode()).digest()
