"""The one writer: a thread that owns the writing connection and commits what waits as one group."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Overloaded, Unavailable
from memory_service.store.connection import explain
from memory_service.store.tidying import Tidying

Work = Callable[[apsw.Connection], Any]

_IDLE_S = 0.05
"""After so long without work the database is tidied: the next slice of an import comes sooner."""


@dataclass(slots=True)
class _Job:
    work: Work
    is_bulk: bool = False
    is_transaction: bool = True
    done: Future[Any] = field(default_factory=Future)


class Writer:
    """Runs pieces of work on the writing connection, each all or nothing, several to a commit.

    A commit waits for the disk; whatever arrives meanwhile shares the next one, so that many lanes at once cost hardly
    more than one. If a group fails, each of its pieces is tried again alone, so that one cannot spoil another. Bulk
    work runs one piece to a commit, and only when nothing else waits; at the end of each of its pieces, and when there
    was nothing to do for a while, the database is tidied by a step.

    :param connection: handed over: nobody else may use it until :meth:`close` has returned
    :param capacity: so many pieces of each kind may wait; more are refused with ``overloaded``
    :param group: so many pieces at most share a commit
    """

    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        *,
        tidying: Tidying | None = None,
        capacity: int = 1024,
        group: int = 64,
    ) -> None:
        self._connection = connection
        self._tidying = tidying
        self._is_untidy = False
        self._is_idle = False
        self._path = path
        self._group = group
        self._capacity = capacity
        self._live: deque[_Job] = deque()
        self._bulk: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="memory-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many pieces of work wait."""
        return len(self._live) + len(self._bulk)

    @property
    def failure(self) -> str | None:
        """Why the last commit failed, or None if it did not."""
        return self._failure

    def submit(self, work: Work, *, bulk: bool = False) -> Future[Any]:
        """Queue a piece of work; the future is done once it is committed and flushed to the disk.

        :param bulk: it gives way to all work that is not
        :raises Overloaded: too much waits already
        :raises Unavailable: the store is closing
        """
        return self._queue(_Job(work, is_bulk=bulk), self._bulk if bulk else self._live)

    def submit_outside(self, work: Work) -> Future[Any]:
        """Queue bulk work that cannot run inside a transaction, such as a checkpoint; see :meth:`submit`."""
        return self._queue(_Job(work, is_bulk=True, is_transaction=False), self._bulk)

    def _queue(self, job: _Job, jobs: deque[_Job]) -> Future[Any]:
        with self._changed:
            if self._closing:
                raise Unavailable(text("memory.closing"), hint=text("memory.closing_hint"))
            if len(jobs) >= self._capacity:
                raise Overloaded(
                    text("memory.too_many_writes", count=self._capacity, path=self._path),
                    hint=text("memory.try_later_hint"),
                )
            jobs.append(job)
            self._changed.notify()
        return job.done

    def close(self) -> None:
        """Do what was queued, then close the connection; blocks until then."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (group := self._next()) is not None:
            if group:
                self._commit([job for job in group if job.done.set_running_or_notify_cancel()])
            else:
                self._tidy_up()
        self._connection.close()

    def _next(self) -> list[_Job] | None:
        """Wait for what to do next: pieces of work, or none to tidy up; None means that the store is closed."""
        with self._changed:
            while not (self._live or self._bulk or self._closing):
                if self._is_due or (self._is_untidy and self._is_idle):
                    return []
                self._is_idle = not self._changed.wait(_IDLE_S if self._is_untidy else None)
            self._is_idle = False
            if self._live:
                return [self._live.popleft() for _ in range(min(len(self._live), self._group))]
            if self._is_due and not self._closing:
                return []
            return [self._bulk.popleft()] if self._bulk else None

    @property
    def _is_due(self) -> bool:
        """Whether there is something to tidy up that does not wait until nothing else is to be done."""
        return self._is_untidy and self._tidying is not None and self._tidying.is_due

    def _tidy_up(self) -> None:
        self._is_untidy = False
        if self._tidying is None:
            return
        try:
            self._is_untidy = self._tidying.between(self._connection)
        except apsw.Error as error:
            # Nobody waits for it; it is tried again after the next piece of work, and then somebody is told.
            self._failure = explain(error, self._path).message

    def _commit(self, group: list[_Job]) -> None:
        if not group:
            return
        try:
            results = self._transaction(group)
        except Exception as error:
            if len(group) > 1:
                for job in group:
                    self._commit_alone(job)
            else:
                self._fail(group[0], error)
            return
        self._succeed(group, results)

    def _commit_alone(self, job: _Job) -> None:
        try:
            results = self._transaction([job])
        except Exception as error:
            self._fail(job, error)
            return
        self._succeed([job], results)

    def _transaction(self, group: list[_Job]) -> list[Any]:
        connection = self._connection
        if not group[0].is_transaction:  # bulk, hence alone
            return [group[0].work(connection)]
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [job.work(connection) for job in group]
            if group[0].is_bulk and self._tidying is not None:
                self._tidying.inside(connection)
            connection.execute("COMMIT")
        except BaseException:
            # A full disk may have made SQLite roll back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results

    def _succeed(self, group: list[_Job], results: list[Any]) -> None:
        self._failure = None
        self._is_untidy = True
        for job, result in zip(group, results, strict=True):
            job.done.set_result(result)

    def _fail(self, job: _Job, error: Exception) -> None:
        if isinstance(error, apsw.Error):
            told = explain(error, self._path)
            if isinstance(told, Unavailable):
                self._failure = told.message
            told.__cause__ = error
            job.done.set_exception(told)
        else:
            job.done.set_exception(error)
