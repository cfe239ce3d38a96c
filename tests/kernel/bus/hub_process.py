"""Hubs in processes of their own, so that they can be killed. Forked on command, since importing takes longest.

Commands on standard input, answered by a line each: ``start RUN_DIR`` (by process id and epoch), ``kill``, ``stop``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import structlog

from kernel.bus import Hub


class Forked:
    """One hub: its process, and the pipe whose end tells it to stop."""

    def __init__(self, run_dir: Path) -> None:
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write_end)
            hub = Hub(run_dir, {name: name.ljust(40, "x") for name in ("memory", "provider", "host", "operator")})
            hub.start()
            say(f"{os.getpid()} {hub.epoch}")
            os.read(read_end, 1)
            hub.stop()
            os._exit(0)
        os.close(read_end)

    def end(self, command: str) -> None:
        if command == "kill":
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._write_end)
        os.waitpid(self.pid, 0)
        say("done")


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main() -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    hub: Forked | None = None
    say("ready")
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "start":
            hub = Forked(Path(argument))
        elif hub is not None:
            hub.end(command)
            hub = None


if __name__ == "__main__":
    main()
