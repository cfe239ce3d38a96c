"""One service as the launcher sees it: how it is started, and how often it had to be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from homeagent_sdk.process import PARENT_ENVIRONMENT
from homeagent_sdk.secrets import DESCRIPTOR_VARIABLE, pass_to_child

BACKOFF_LIMIT_S = 10
HEALTHY_AFTER_S = 60.0
"""A service that has lived this long is given the shortest delay again."""

_OUTPUT_BYTES = 1024 * 1024
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What to run.

    ``secrets`` reach this service alone, on a descriptor; they are in no environment and in no argument.
    """

    name: str
    command: tuple[str, ...]
    stop_within_s: float
    secrets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def module(
        cls, name: str, *arguments: str, stop_within_s: float, secrets: Mapping[str, str] | None = None
    ) -> ServiceSpec:
        """Describe a service that is a Python package; ``-P`` keeps the current folder from shadowing it."""
        return cls(name, (sys.executable, "-P", "-m", name, *arguments), stop_within_s, secrets or {})


class Service:
    """A service that is to be kept running.

    ``started`` is wall time; ``restarts`` counts the starts after the first.
    """

    def __init__(self, spec: ServiceSpec, log_dir: Path) -> None:
        self.spec = spec
        self.restarts = 0
        self.started = 0.0
        self.exit_code: int | None = None
        self.gone = asyncio.Event()
        self._failures = 0
        self._started_monotonic = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._output = log_dir / f"{spec.name}.out"

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the process.

        It has a session of its own, so that Ctrl-C reaches the launcher alone, which then stops all in order. What it
        writes before its own log is set up goes to ``log/<name>.out``.
        """
        if self._process is not None:
            self.restarts += 1
        extra = {PARENT_ENVIRONMENT: str(os.getpid())}
        descriptors = [pass_to_child(self.spec.secrets)] if self.spec.secrets else []
        if descriptors:
            extra[DESCRIPTOR_VARIABLE] = str(descriptors[0])
        self.gone = asyncio.Event()
        self.exit_code = None
        try:
            with open(self._output, "ab", opener=_private) as output:
                if output.tell() > _OUTPUT_BYTES:
                    output.truncate(0)
                self._process = subprocess.Popen(
                    self.spec.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=descriptors,
                    env={**environment, **extra},
                    cwd="/",
                    start_new_session=True,
                )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.started = time.time()
        self._started_monotonic = time.monotonic()

    def poll(self) -> None:
        """Notice whether the process has ended; sets ``gone``."""
        if self._process is not None and not self.gone.is_set() and self._process.poll() is not None:
            self.exit_code = self._process.returncode
            self.gone.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def next_delay_s(self) -> float:
        """Return how long to wait before the next start: 1, 2, 3 … 10 s, and from 1 again after a minute of life."""
        if time.monotonic() - self._started_monotonic >= HEALTHY_AFTER_S:
            self._failures = 0
        self._failures += 1
        return float(min(self._failures, BACKOFF_LIMIT_S))

    def last_words(self) -> str:
        """Return the last line that the process wrote outside its log; empty if there is none."""
        try:
            with open(self._output, "rb") as output:
                size = output.seek(0, os.SEEK_END)
                output.seek(max(0, size - _TAIL_BYTES))
                lines = output.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
