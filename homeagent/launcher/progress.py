"""What a person sees while the system starts; all of it on stderr, since stdout carries the one line ``ready``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

from homeagent_sdk.catalogue import text

_SPOKEN_EVERY_S = 10.0


class Progress:
    """One line that changes in place on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown = ""
        self._began = self._spoke = time.monotonic()

    def tell(self, line: str) -> None:
        """Write a line that stays."""
        self._put(f"{line}\n")

    def waiting_for(self, names: Iterable[str]) -> None:
        """Say what is not up yet."""
        now = time.monotonic()
        line = text("command.up_waiting", names=", ".join(names), seconds=int(now - self._began))
        if not self._is_terminal:
            if now - self._spoke >= _SPOKEN_EVERY_S:
                self._spoke = now
                self.tell(line)
            return
        if line != self._shown:
            self._put(line)
            self._shown = line

    def done(self) -> None:
        """Take the changing line away."""
        self._put("")

    def _put(self, words: str) -> None:
        """Write in place of the changing line. A terminal that was closed is no reason for the launcher to end."""
        erase, self._shown = "\r\x1b[2K" if self._shown else "", ""
        with suppress(OSError, ValueError):
            self._stream.write(erase + words)
            self._stream.flush()
