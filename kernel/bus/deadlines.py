"""Deadlines of things that may end before them: the earliest is always at hand, and what has ended costs nothing."""

from __future__ import annotations

import heapq
from collections.abc import Collection

_SLACK = 1024


class Deadlines:
    """A heap of ``(deadline, number)``. Numbers are never used twice.

    :param alive: the numbers that have not ended; looked at, never changed
    """

    def __init__(self, alive: Collection[int]) -> None:
        self._alive = alive
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline: float, number: int) -> None:
        """Remember a deadline."""
        heapq.heappush(self._heap, (deadline, number))
        if len(self._heap) > _SLACK + 2 * len(self._alive):
            self._heap = [entry for entry in self._heap if entry[1] in self._alive]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """Return the earliest deadline of what has not ended."""
        heap = self._heap
        while heap and heap[0][1] not in self._alive:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> int | None:
        """Take out one number whose deadline has passed, if there is one."""
        deadline = self.next()
        return heapq.heappop(self._heap)[1] if deadline is not None and deadline <= now else None
