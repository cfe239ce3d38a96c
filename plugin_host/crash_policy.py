"""When a plugin that crashed is started again, and when it is left alone until a person acts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

DELAY_STEP_S = 1.0


@dataclass(slots=True)
class RestartLimit:
    """The two settings of the policy, shared by all plugins."""

    restarts: int = 3
    """How many crashes within the window are answered by a restart."""
    window_s: float = 300.0


class CrashPolicy:
    """Restart after 1, 2, 3 s; one crash more within the window, and the plugin stays down.

    A plugin that has run for the whole window since its last crash starts from nothing.
    """

    def __init__(self, limit: RestartLimit) -> None:
        self._limit = limit
        self._crashes: deque[float] = deque()

    def crashed(self, now: float) -> float | None:
        """Record a crash.

        :param now: seconds, monotonic
        :returns: how long to wait before the restart, in seconds, or None for no restart
        """
        while self._crashes and now - self._crashes[0] >= self._limit.window_s:
            self._crashes.popleft()
        self._crashes.append(now)
        count = len(self._crashes)
        if count > self._limit.restarts:
            # The bound of this queue: beyond the limit nothing more is recorded before a person resets it.
            self._crashes.clear()
            return None
        return count * DELAY_STEP_S

    @property
    def count(self) -> int:
        """Crashes that count at the moment."""
        return len(self._crashes)

    def reset(self) -> None:
        """Forget all crashes: a person has acted."""
        self._crashes.clear()
