"""Learn at once when a process ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class ProcessWatch:
    """Watches processes by descriptors of theirs. Where one cannot be seen, pings tell it later."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptors: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._descriptors)

    def watch(self, key: int, pid: int, ended: Callable[[], None]) -> None:
        """Call ``ended`` once when the process ends.

        :param key: by which :meth:`forget` knows it
        """
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return
        self._descriptors[key] = descriptor

        def readable() -> None:
            self.forget(key)
            ended()

        self._loop.add_reader(descriptor, readable)

    def forget(self, key: int) -> None:
        """Stop watching. The loop lets go of the descriptor first: a closed one would haunt the next of its number."""
        descriptor = self._descriptors.pop(key, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
