"""What differs between the two libraries for SQLite, :mod:`apsw` and :mod:`sqlite3`, and what both need."""

from __future__ import annotations

import sqlite3
from typing import Any


def database_errors(connection: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions of the connection's library, without importing apsw where it is not used."""
    if isinstance(connection, sqlite3.Connection):
        return (sqlite3.Error,)
    import apsw

    return (apsw.Error,)


def path_of(connection: Any) -> str:
    """Return the file of a connection, for an error message."""
    for row in connection.execute("PRAGMA database_list"):
        if row[1] == "main":
            return str(row[2] or "a database in memory")
    return "a database"
