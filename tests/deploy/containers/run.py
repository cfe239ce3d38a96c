"""Runs all checks, says how each went, and cleans up."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from tests.deploy.containers import engine, from_plugins, life, lockdown
from tests.deploy.containers.stack import IMAGE, Stack

OK, FAILED, NO_ENGINE = 0, 1, 3
CHECKS = (*life.TALK, *lockdown.CHECKS, *from_plugins.CHECKS, *life.TROUBLE)

Check = Callable[[Stack], None]


def main() -> int:
    """Run the checks that are named on the command line, or all; return the exit code."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    wanted = sys.argv[1:]
    checks = [check for check in CHECKS if not wanted or any(part in check.__name__ for part in wanted)]
    if not checks:
        print("no check has such a name; these are there:", *(check.__name__ for check in CHECKS), sep="\n  ")
        return 2
    # What was begun is cleaned up, also when something else ends this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        version = engine.version()
        stack = Stack()
    except engine.NoEngine as error:
        print(f"test-compose cannot run: {error}")
        print("It needs a Docker engine that this user may use, with Compose; DOCKER_HOST says where it listens.")
        return NO_ENGINE
    print(f"Docker {version}, {' '.join(stack.compose)}, project {stack.project}, port {stack.port}")
    code = FAILED
    try:
        code = _test(stack, checks)
    except KeyboardInterrupt:
        print("interrupted; cleaning up")
    finally:
        stack.remove()
        print(f"cleaned up; {time.monotonic() - began:.0f} s in all, image {_size(IMAGE)}")
    return code


def _test(stack: Stack, checks: Sequence[Check]) -> int:
    try:
        stack.make_secrets()
        print(f"  built in {stack.build():.0f} s; image {_size(IMAGE)}")
        print(f"  ready after {stack.up():.1f} s")
    except (engine.Failed, AssertionError, subprocess.TimeoutExpired) as error:
        print(f"FAILED to start: {error}")
        _show_logs(stack)
        return FAILED
    failed = [check.__name__ for check in checks if not _passes(check, stack)]
    if failed:
        _show_logs(stack)
        print(f"{len(failed)} of {len(checks)} checks FAILED: {', '.join(failed)}")
        return FAILED
    print(f"all {len(checks)} checks passed")
    return OK


def _passes(check: Check, stack: Stack) -> bool:
    began = time.monotonic()
    name = check.__name__.replace("_", " ")
    try:
        check(stack)
    except (AssertionError, LookupError, ValueError, TypeError, engine.Failed, subprocess.TimeoutExpired) as error:
        print(f"  FAILED {name} ({time.monotonic() - began:.1f} s)")
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"         {type(error).__name__} at {where.name}:{where.lineno}: {str(error)[:2000]}")
        return False
    print(f"  ok     {name} ({time.monotonic() - began:.1f} s)")
    return True


def _show_logs(stack: Stack) -> None:
    try:
        print(stack.logs())
    except (engine.Failed, subprocess.TimeoutExpired) as error:
        print(f"no logs: {error}")


def _size(image: str) -> str:
    shown = engine.run(["docker", "image", "inspect", "--format", "{{.Size}}", image], check=False).stdout.strip()
    return f"{int(shown) / 1e6:.0f} MB" if shown.isdigit() else "not there"
