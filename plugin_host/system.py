"""The few things that Linux offers and Python does not."""

from __future__ import annotations

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def become_subreaper() -> None:
    """Become the parent of every orphan among one's descendants; call it before the first of them is started."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Have the system send this process a signal when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, number)


def set_process_name(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show; the system keeps 15 bytes of it."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def wait_for_parent(pid: int, timeout_s: float = 5.0) -> bool:
    """Wait until ``pid`` is this process' parent, as it becomes once the fork between them has ended."""
    deadline = time.monotonic() + timeout_s
    while os.getppid() != pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def kill_group(leader: int) -> None:
    """Kill all processes of a process group; none left is fine."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
