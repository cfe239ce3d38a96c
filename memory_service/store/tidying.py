"""What SQLite would do at an unlucky moment, done in small steps at chosen ones: merging and checkpoints.

Left to themselves both happen inside whichever commit crosses a limit: a merge of the word index held single commits
up for 32 ms, a checkpoint for 10 to 50. Here a step merges a few pages, 1 to 4 ms, at the end of each slice of bulk
work and while nothing is to be done; and the write-ahead log is copied into the database by a thread of its own, beside
the writer, who only copies what was added meanwhile, so that the log begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from memory_service.store.connection import open_for_reading

MERGED_PAGES = 16
"""So many pages of a word index a step writes."""

LOG_PAGES = 2_000
"""The write-ahead log is copied whenever so many pages were added: 8 MB. What an import adds meanwhile is copied by the
writer itself, so that the log begins anew, but only at twice that size, since it takes some 5 ms."""

_INDEXES = ("event_words", "document_words", "relation_words")


class Tidying:
    """Takes one step at a time on the writing connection; called by the writer, in its thread.

    :param log_pages: after how many pages of the write-ahead log it is copied. It may grow beyond that: a question
        that runs long keeps it from beginning anew
    """

    def __init__(self, path: Path, connection: apsw.Connection, *, log_pages: int = LOG_PAGES) -> None:
        self._path = path
        self._log_pages = log_pages
        self._pages = 0
        self._next_index = 0
        self._is_left_over = False
        self._closing = False
        self._wanted = threading.Event()
        self._failure: apsw.Error | None = None
        connection.wal_autocheckpoint(0)
        connection.set_wal_hook(self._committed)
        self._thread = threading.Thread(target=self._copy_log, name="memory-checkpoints", daemon=True)
        self._thread.start()

    @property
    def is_due(self) -> bool:
        """Whether :meth:`between` has something to do that must not wait until there is no bulk work."""
        return self._is_left_over or self._failure is not None

    def inside(self, connection: apsw.Connection) -> None:
        """Merge a little at the end of a bulk transaction, inside it: so it needs no commit of its own."""
        self._merge(connection)

    def between(self, connection: apsw.Connection) -> bool:
        """Do a little between two transactions.

        :returns: True if there is more to do
        :raises apsw.Error: the medium failed, here or in the thread that copies the log
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._is_left_over:
            self._is_left_over = False
            self._finish_log(connection)
            return True
        return self._merge(connection)

    def close(self) -> None:
        """Stop copying; blocks until a copy under way is done. Closing the last connection copies the rest."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:
            self._pages = 0
        if pages >= self._pages + self._log_pages:
            # Again and again while it grows, but not after each commit.
            self._pages = pages
            self._wanted.set()
        return apsw.SQLITE_OK

    def _copy_log(self) -> None:
        while True:
            self._wanted.wait()
            if self._closing:
                return
            self._wanted.clear()
            try:
                with _opened(self._path) as connection:
                    pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._is_left_over = pages >= 2 * self._log_pages
            except apsw.BusyError:
                # Somebody copies it at this moment; if that does not suffice, a later commit asks again.
                continue
            except apsw.Error as error:
                self._failure = error

    def _merge(self, connection: apsw.Connection) -> bool:
        for _ in _INDEXES:
            if _merge(connection, _INDEXES[self._next_index]):
                return True
            self._next_index = (self._next_index + 1) % len(_INDEXES)
        return False

    def _finish_log(self, connection: apsw.Connection) -> None:
        # If somebody else copies it at this moment, a later commit asks again.
        with suppress(apsw.BusyError):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


@contextmanager
def _opened(path: Path) -> Iterator[apsw.Connection]:
    connection = open_for_reading(path)
    try:
        yield connection
    finally:
        connection.close()


def _merge(connection: apsw.Connection, index: str) -> bool:
    """Merge a few pages of a word index; False if there was nothing to merge."""
    before = connection.total_changes()
    connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('merge', ?)", (MERGED_PAGES,))
    # One change is the statement itself.
    return connection.total_changes() - before >= 2
