"""How ``memory.db`` is opened, and what SQLite's complaints mean for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from homeagent_sdk.errors import HomeAgentError, Internal, Unavailable
from memory_service.words import tokenizer

_BUSY_MS = 5_000
_FULL = "free some space on that disk; what was stored before is safe, and storing goes on as soon as there is room"
_BROKEN = (
    "the file was left as it is: stop HomeAgent, keep a copy of the file, then put back a backup, or move the file "
    "away to begin with an empty memory"
)
_HINTS: tuple[tuple[type[apsw.Error], str, str], ...] = (
    (apsw.FullError, "there is no room left", _FULL),
    (apsw.IOError, "the disk does not take or give what it should", _FULL),
    (apsw.NotADBError, "the file is not a database", _BROKEN),
    (apsw.CorruptError, "the database is damaged", _BROKEN),
    (apsw.CantOpenError, "the file cannot be opened", "check the folder's owner and mode"),
    (
        apsw.ReadOnlyError,
        "the file cannot be written",
        "check the file's owner and mode, and that its disk is not read-only",
    ),
    (apsw.PermissionsError, "the file may not be accessed", "check the file's owner and mode"),
    (apsw.AuthError, "the file may not be accessed", "check the file's owner and mode"),
    (apsw.BusyError, "another program has locked the file", "close the program that has it open"),
    (apsw.NoMemError, "there is not enough memory", "stop something else, then try again"),
)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite raises inside the block into a typed error that names the file and says what to do."""
    try:
        yield
    except apsw.Error as error:
        raise explain(error, path) from error


def explain(error: apsw.Error, path: Path) -> HomeAgentError:
    """Return the typed error for one of SQLite's; one that says nothing of the medium is a mistake of ours."""
    for kind, what, hint in _HINTS:
        if isinstance(error, kind):
            return Unavailable(f"{path}: {what} ({error})", hint=hint, detail={"path": str(path)})
    return Internal(f"{path}: {error!r}", hint="report this message", detail={"path": str(path)})


def is_damage(error: apsw.Error) -> bool:
    """Whether the error means that the file itself is broken, so that trying again cannot help."""
    return isinstance(error, apsw.NotADBError | apsw.CorruptError)


def open_for_writing(path: Path) -> apsw.Connection:
    """Open the database, or make it."""
    return _open(path, "journal_mode = WAL", "synchronous = FULL", "secure_delete = ON")


def open_for_reading(path: Path) -> apsw.Connection:
    """Open a database that exists; it sees what is committed and never waits for the writer."""
    # Not opened read-only: such a connection could not recover the write-ahead log after a crash.
    return _open(path, "query_only = ON")


def _open(path: Path, *settings: str) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(_BUSY_MS)
        # The first to read the file: where that is no database, it says so; the tokenizer would only say "no FTS5".
        connection.execute("PRAGMA schema_version")
        tokenizer.register(connection)
        for setting in ("foreign_keys = ON", "temp_store = MEMORY", *settings):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection
