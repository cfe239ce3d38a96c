"""What every process of HomeAgent does the same: stop when told, and never outlive its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from homeagent_sdk.errors import HomeAgentError, Invalid, NotFound

PARENT_ENVIRONMENT = "HOMEAGENT_PARENT_PID"
HEARTBEAT_ENVIRONMENT = "HOMEAGENT_HEARTBEAT_FD"
"""Names an open file whose time says when the event loop of this process last turned; for whoever watches it."""

HEARTBEAT_S = 5.0
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 3
STOP_WITHIN_S = 5.0
"""How long a process may take to stop after SIGTERM."""

_PASSED_ON = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PR_SET_PDEATHSIG = 1

Main = Callable[[asyncio.Event], Coroutine[Any, Any, int | None]]


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the system kill this process when its parent dies, however that dies.

    Call it on the main thread, early. Without ``parent_pid`` and without ``HOMEAGENT_PARENT_PID`` in the environment
    nothing happens: the process was started by hand or by systemd. The variable is taken out of the environment, so
    that it means this process alone and not its children. Exits at once if the parent is already gone.

    The system looks at the *thread* that started this process: a parent must start its children from a thread that
    lives as long as it does.
    """
    told = os.environ.pop(PARENT_ENVIRONMENT, "")
    expected = parent_pid if parent_pid is not None else int(told) if told.isdigit() else None
    if expected is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:
        os._exit(EXIT_FAILED)


def child_environment(package_root: Path) -> dict[str, str]:
    """Return what a child of a service finds in its environment: what Python and the language need, and no secret.

    :param package_root: the folder in which the package lies that the child runs
    """
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = (str(package_root), passed.get("PYTHONPATH", ""))
    return passed | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def run(main: Main, *, stop_within_s: float = STOP_WITHIN_S) -> int:
    """Run ``main`` until it returns, and return the exit code of the process.

    ``main`` gets an event that SIGTERM and SIGINT set: it then stops in order and returns (None counts as 0). If it
    has not within ``stop_within_s`` seconds, or at a second signal, it is cancelled. A typed error is written to
    stderr, for a person: exit code 3 if the environment or configuration is wrong (``invalid``, ``not_found``), else 1.
    """
    try:
        return asyncio.run(_run_until_told(main, stop_within_s))
    except HomeAgentError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIGURATION if isinstance(error, Invalid | NotFound) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED


async def _run_until_told(main: Main, stop_within_s: float) -> int:
    loop = asyncio.get_running_loop()
    heartbeat = _heartbeat_descriptor()
    if heartbeat is not None:
        _beat(loop, heartbeat)
    stopping = asyncio.Event()
    task = asyncio.ensure_future(main(stopping))

    def stop() -> None:
        if stopping.is_set():
            task.cancel()
            return
        stopping.set()
        loop.call_later(stop_within_s, task.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        code = await task
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        return EXIT_FAILED
    return EXIT_OK if code is None else code


def _heartbeat_descriptor() -> int | None:
    """Take the descriptor for this process alone, not for its children."""
    told = os.environ.pop(HEARTBEAT_ENVIRONMENT, "")
    if not told.isdigit():
        return None
    os.set_inheritable(int(told), False)
    return int(told)


def _beat(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    os.utime(descriptor)
    loop.call_later(HEARTBEAT_S, _beat, loop, descriptor)


def prefer_as_oom_victim(score: int) -> None:
    """Tell the system how willingly this process may be killed when memory runs out.

    :param score: -1000 (never) to 1000 (first); lowering it needs a privilege and is left as it was without
    """
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(score))
    except OSError:
        return


def lower_switch_interval(seconds: float = 0.0005) -> None:
    """Let threads take turns more often than every 5 ms, for a process where one thread must answer quickly."""
    sys.setswitchinterval(seconds)
