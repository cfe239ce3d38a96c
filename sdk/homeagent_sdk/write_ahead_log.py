"""The log that SQLite writes before the database: what was deleted stands in it until it is emptied."""

from __future__ import annotations

from typing import Any


def empty(connection: Any, busy_ms: int) -> bool:
    """Bring all of the log into the database and cut it to nothing; tries once, without waiting for readers.

    :param connection: an :class:`apsw.Connection`, not inside a transaction
    :param busy_ms: how long the connection waits for a lock otherwise; it does again afterwards
    :returns: False if somebody still reads what stands in the log
    """
    import apsw

    connection.set_busy_timeout(0)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_timeout(busy_ms)
    return True
