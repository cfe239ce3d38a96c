"""The one writer: a thread that owns the writing connection and commits what waits as one group."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Overloaded, Unavailable
from memory_service.store.connection import explain

Work = Callable[[apsw.Connection], Any]


@dataclass(slots=True)
class _Job:
    work: Work
    done: Future[Any] = field(default_factory=Future)


class Writer:
    """Runs pieces of work on the writing connection, each all or nothing, several to a commit.

    A commit waits for the disk; whatever arrives meanwhile shares the next one, so that many lanes at once cost hardly
    more than one. If a group fails, each of its pieces is tried again alone, so that one cannot spoil another.

    :param connection: handed over: nobody else may use it until :meth:`close` has returned
    :param capacity: so many pieces may wait; more are refused with ``overloaded``
    :param group: so many pieces at most share a commit
    """

    def __init__(self, connection: apsw.Connection, path: Path, *, capacity: int = 1024, group: int = 64) -> None:
        self._connection = connection
        self._path = path
        self._group = group
        self._jobs: queue.Queue[_Job | None] = queue.Queue(capacity)
        self._closing = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="memory-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many pieces of work wait."""
        return self._jobs.qsize()

    @property
    def failure(self) -> str | None:
        """Why the last commit failed, or None if it did not."""
        return self._failure

    def submit(self, work: Work) -> Future[Any]:
        """Queue a piece of work; the future is done once it is committed and flushed to the disk.

        :raises Overloaded: too much waits already
        :raises Unavailable: the store is closing
        """
        if self._closing.is_set():
            raise Unavailable(text("memory.closing"), hint=text("memory.closing_hint"))
        job = _Job(work)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Overloaded(
                text("memory.too_many_writes", count=self._jobs.maxsize, path=self._path),
                hint=text("memory.try_later_hint"),
            ) from None
        return job.done

    def close(self) -> None:
        """Do what was queued, then close the connection; blocks until then."""
        self._closing.set()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            group: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                group.append(job)
                if len(group) == self._group:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            else:
                stopping = True
            self._commit([job for job in group if job.done.set_running_or_notify_cancel()])
        self._connection.close()

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
        self._failure = None
        for job, result in zip(group, results, strict=True):
            job.done.set_result(result)

    def _commit_alone(self, job: _Job) -> None:
        try:
            (result,) = self._transaction([job])
        except Exception as error:
            self._fail(job, error)
            return
        self._failure = None
        job.done.set_result(result)

    def _transaction(self, group: list[_Job]) -> list[Any]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [job.work(connection) for job in group]
            connection.execute("COMMIT")
        except BaseException:
            # A full disk may have made SQLite roll back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results

    def _fail(self, job: _Job, error: Exception) -> None:
        if isinstance(error, apsw.Error):
            told = explain(error, self._path)
            if isinstance(told, Unavailable):
                self._failure = told.message
            told.__cause__ = error
            job.done.set_exception(told)
        else:
            job.done.set_exception(error)
