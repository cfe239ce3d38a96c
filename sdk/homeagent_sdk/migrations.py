"""Forward-only migrations, the same for every database: each step is one transaction, and the history is in the file.

Works with an :class:`apsw.Connection` and with a :class:`sqlite3.Connection` opened with ``isolation_level=None``.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homeagent_sdk._sqlite import database_errors, path_of
from homeagent_sdk.errors import Conflict, HomeAgentError, Internal, Invalid, Unavailable
from homeagent_sdk.paths import flush

_HISTORY = """CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at REAL NOT NULL
) STRICT"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a database's schema.

    :ivar version: counts from 1 without gaps, for ever: a released migration is never edited or renumbered
    :ivar name: a few words on what the step does; kept in the database, so that a clash of branches is seen
    :ivar sql: one or more statements; no ``BEGIN``, ``COMMIT`` or ``PRAGMA`` that cannot run in a transaction
    :ivar then: what SQL cannot do, done with the connection after ``sql``, in the same transaction
    """

    version: int
    name: str
    sql: str
    then: Callable[[Any], None] | None = None


def migrate(connection: Any, migrations: Sequence[Migration], *, before: Callable[[], None] | None = None) -> int:
    """Bring a database to the newest version; called by its owner at start, before anything else uses it.

    Each migration runs in one ``IMMEDIATE`` transaction together with its line in ``schema_version``, so that a crash
    leaves the database before or after a step, never within one. Two processes that start at once do not collide.

    :param connection: not inside a transaction
    :param before: run once if anything is to be applied to a database that is not empty; the place for
        :func:`online_backup`. If it raises, nothing is applied
    :returns: the version of the database afterwards
    :raises Invalid: the list of migrations has a gap or a duplicate, or the connection cannot be used as it is
    :raises Conflict: the database is newer than this program, or its history is not this program's
    :raises Internal: a statement failed; that migration was rolled back, those before it stay
    """
    _check_sequence(migrations)
    _check_connection(connection)
    where = path_of(connection)
    applied = _history(connection)
    _check_history(applied, migrations, where)
    pending = migrations[len(applied) :]
    if pending and before is not None and not _is_empty(connection):
        before()
    for migration in pending:
        _apply(connection, migration, where)
    return len(migrations)


def online_backup(connection: Any, target_path: str | os.PathLike[str]) -> Path:
    """Copy a database that is in use into one file, as of one moment.

    The copy is made beside the target under another name, flushed to the disk and then renamed, so that the target is
    either the whole copy or what was there before. It is readable by its owner only.

    :param connection: an open connection to the database, not inside a write transaction; blocked while copying
    :returns: the path of the copy
    :raises Unavailable: the copy could not be written
    """
    target = Path(target_path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    failures: tuple[type[Exception], ...] = (OSError, *database_errors(connection))
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy(connection, partial)
        flush(partial)
        partial.replace(target)
        flush(target.parent)
    except failures as error:
        raise Unavailable(
            f"the backup of {path_of(connection)} to {target} failed: {error}",
            hint="check that the folder exists, is writable and has room for the whole database",
        ) from error
    finally:
        for leftover in partial.parent.glob(f"{partial.name}*"):
            leftover.unlink(missing_ok=True)
    return target


def _check_sequence(migrations: Sequence[Migration]) -> None:
    for expected, migration in enumerate(migrations, start=1):
        if migration.version != expected:
            raise Invalid(
                f"migration {migration.name!r} has version {migration.version} where {expected} must follow",
                field="migrations",
                hint="number the migrations 1, 2, 3 … without gaps or duplicates; add new ones at the end",
            )


def _check_connection(connection: Any) -> None:
    if isinstance(connection, sqlite3.Connection) and connection.isolation_level is not None:
        raise Invalid(
            "a sqlite3 connection that opens transactions by itself cannot be migrated",
            field="connection",
            hint="open it with isolation_level=None",
        )
    if connection.in_transaction:
        raise Invalid("the connection is inside a transaction", field="connection", hint="commit it first")


def _check_history(applied: list[tuple[int, str]], migrations: Sequence[Migration], where: str) -> None:
    for index, (version, name) in enumerate(applied):
        if index >= len(migrations):
            raise Conflict(
                f"{where} has schema version {applied[-1][0]}; this program knows versions up to {len(migrations)}",
                hint="start the newer program that made it, or put back the backup made before it was upgraded",
            )
        known = migrations[index]
        if (known.version, known.name) != (version, name):
            raise Conflict(
                f"{where} was made by another line of this program: its version {version} is {name!r}, "
                f"here version {known.version} is {known.name!r}",
                hint="start the program that made it, or choose another data directory; nothing was changed",
            )


def _history(connection: Any) -> list[tuple[int, str]]:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'schema_version'")
    if not list(found):
        return []
    rows = connection.execute("SELECT version, name FROM schema_version ORDER BY version")
    return [(int(version), str(name)) for version, name in rows]


def _is_empty(connection: Any) -> bool:
    return not list(connection.execute("SELECT 1 FROM sqlite_master LIMIT 1"))


def _apply(connection: Any, migration: Migration, where: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_HISTORY)
        # Another process may have got here first, between our look at the history and our lock.
        if migration.version not in dict(_history(connection)):
            for statement in _statements(migration.sql):
                connection.execute(statement)
            if migration.then is not None:
                migration.then(connection)
            connection.execute(
                "INSERT INTO schema_version (version, name, applied_at) VALUES (?, ?, ?)",
                (migration.version, migration.name, time.time()),
            )
        connection.execute("COMMIT")
    except BaseException as error:
        # A full disk may have made SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, HomeAgentError) or not isinstance(error, database_errors(connection)):
            raise
        raise Internal(
            f"migration {migration.version} ({migration.name}) of {where} failed and was rolled back: {error}",
            hint="nothing was changed by it; check that the disk has room, then start again, or report this message",
        ) from error


def _statements(sql: str) -> Iterator[str]:
    """Split a script into statements; ``executescript`` of the standard library would commit the transaction."""
    statement = ""
    for piece in sql.split(";"):
        statement += piece
        if sqlite3.complete_statement(statement + ";"):
            yield statement + ";"
            statement = ""
        else:
            statement += ";"
    rest = statement.removesuffix(";")
    if rest.strip():
        yield rest


def _copy(connection: Any, target: Path) -> None:
    copy: Any
    if isinstance(connection, sqlite3.Connection):
        copy = sqlite3.connect(target)
        try:
            connection.backup(copy)
        finally:
            copy.close()
        return
    copy = type(connection)(str(target))
    try:
        with copy.backup("main", connection, "main") as backup:
            backup.step(-1)
    finally:
        copy.close()
