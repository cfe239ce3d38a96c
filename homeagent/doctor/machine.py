"""Examines the machine: Python, the user, the system's means of protection, the clock."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Iterator

from homeagent.doctor.check import FAIL, OK, WARN, Check, found
from homeagent.launcher.preflight import LOWEST_PYTHON
from homeagent_sdk.paths import DataDir

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION_FLAG = 1
_CLOCK_TOLERANCE_S = 300.0
_BUILT = 1_764_547_200.0
"""No clock that is right shows an earlier time: 2025-12-01."""


def examine_machine(data: DataDir) -> Iterator[Check]:
    """Examine the machine."""
    yield _python()
    yield _user()
    yield _landlock()
    yield _clock(data, time.time())


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info < LOWEST_PYTHON:
        return found("python", FAIL, "python_old", version=version)
    return found("python", OK, "python", version=version)


def _user() -> Check:
    if os.geteuid() == 0:
        return found("user", WARN, "root")
    return found("user", OK, "user", uid=os.geteuid())


def landlock_abi() -> int:
    """Return the version of Landlock that the running system offers, 0 for none."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    return max(0, int(syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION_FLAG)))


def _landlock() -> Check:
    abi = landlock_abi()
    return found("landlock", OK, "landlock", abi=abi) if abi else found("landlock", WARN, "no_landlock")


def _clock(data: DataDir, now: float) -> Check:
    """Compare the clock with what was written last: a clock that went back would put new memories before old ones."""
    shown = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(now))
    newest = max((path.stat().st_mtime for path in data.root.glob("*/*") if path.is_file()), default=0.0)
    if now < max(_BUILT, newest - _CLOCK_TOLERANCE_S):
        return found("clock", FAIL, "clock_behind", time=shown)
    return found("clock", OK, "clock", time=shown)
