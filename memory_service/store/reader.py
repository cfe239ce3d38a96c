"""Reading threads, each with a connection of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Overloaded, Unavailable
from memory_service.store.connection import open_for_reading, translated

T = TypeVar("T")


class Readers:
    """Runs questions to the database in threads; they neither wait for the writer nor hold it up.

    :param prepare: called with each new connection
    :param threads: so many questions run at once
    :param capacity: so many may wait or run; more are refused with ``overloaded``
    """

    def __init__(
        self, path: Path, prepare: Callable[[apsw.Connection], None], *, threads: int = 2, capacity: int = 128
    ) -> None:
        self._path = path
        self._prepare = prepare
        self._capacity = capacity
        self._busy = 0
        self._failure: str | None = None
        self._mine = threading.local()
        self._connections: list[apsw.Connection] = []
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="memory-reader")

    @property
    def failure(self) -> str | None:
        """Why the last question could not be answered, or None if it could."""
        return self._failure

    async def run(self, question: Callable[[apsw.Connection], T]) -> T:
        """Run a question and return its answer.

        :raises Overloaded: too many wait already
        :raises Unavailable: the database cannot be read
        """
        if self._busy >= self._capacity:
            raise Overloaded(
                text("memory.too_many_questions", count=self._busy, path=self._path), hint=text("memory.try_later_hint")
            )
        self._busy += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._pool, self._ask, question)
        except Unavailable as error:
            self._failure = error.message
            raise
        else:
            self._failure = None
            return answer
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Finish the questions under way and close; blocks until then."""
        self._pool.shutdown()
        for connection in self._connections:
            connection.close()

    def _ask(self, question: Callable[[apsw.Connection], T]) -> T:
        with translated(self._path):
            connection: apsw.Connection | None = getattr(self._mine, "connection", None)
            if connection is None:
                connection = open_for_reading(self._path)
                self._connections.append(connection)
                self._prepare(connection)
                self._mine.connection = connection
            return question(connection)
