"""Log lines about misbehaving peers, no faster than a person can read: a flood of garbage must not flood the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

LINES_PER_WINDOW: Final = 10
"""Lines of one kind; what comes beyond is counted, and the next line that is written tells how many."""
WINDOW_S: Final = 10.0
_log = structlog.get_logger("hub")


class _Window:
    __slots__ = ("lines", "since", "suppressed")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = 0
        self.suppressed = 0


class Complaints:
    """Writes warnings, ten of a kind in ten seconds at most. The kinds are literals in the hub's code, so they are few.

    :param clock: seconds, monotonic
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def warn(self, kind: str, **facts: Any) -> None:
        """Write a warning, or count it."""
        now = self._clock()
        window = self._windows.setdefault(kind, _Window(now))
        if now - window.since >= WINDOW_S:
            window.since, window.lines = now, 0
        if window.lines >= LINES_PER_WINDOW:
            window.suppressed += 1
            return
        window.lines += 1
        if window.suppressed:
            facts["suppressed"] = window.suppressed
            window.suppressed = 0
        _log.warning(kind, **facts)
