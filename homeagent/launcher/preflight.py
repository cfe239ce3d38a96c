"""What is checked before anything is started, so that nothing is half started."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Denied, Invalid, Unavailable
from homeagent_sdk.paths import DataDir

LOWEST_PYTHON = (3, 11)
DISK_REFUSED_BYTES = 8 * 1024 * 1024
"""With less room than this the databases could not even be made."""
DISK_WARNED_BYTES = 200 * 1024 * 1024


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> None:
    """Check the version of Python.

    :raises Invalid: it is too old
    """
    if version < LOWEST_PYTHON:
        shown = ".".join(map(str, version))
        raise Invalid(text("command.python_too_old", version=shown), hint=text("command.python_too_old_hint"))


def check_disk(folder: Path, warn: Callable[[str], None]) -> None:
    """Check that there is room to write.

    :raises Unavailable: the disk is full
    """
    free = shutil.disk_usage(folder).free
    shown = f"{free / 1024 / 1024:.0f} MB"
    if free < DISK_REFUSED_BYTES:
        raise Unavailable(text("command.disk_full", path=folder, free=shown), hint=text("command.disk_full_hint"))
    if free < DISK_WARNED_BYTES:
        warn(text("command.disk_nearly_full", path=folder, free=shown))


def lock(data: DataDir) -> int:
    """Take the data directory for this launcher alone, and return the descriptor that holds the lock.

    :raises Conflict: another launcher runs on it, or a restore of it is not finished
    """
    descriptor = os.open(data.run / "launcher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise Conflict(
            text("command.already_running", path=data.root), hint=text("command.already_running_hint")
        ) from error
    try:
        check_restore(data)
    except Conflict:
        os.close(descriptor)
        raise
    return descriptor


def restore_plan(data: DataDir) -> Path:
    """Return the path of the file that is there as long as a restore is not finished."""
    return data.root / "restore" / "plan.json"


def check_restore(data: DataDir) -> None:
    """Check that no restore was interrupted: some databases would be new, others old.

    :raises Conflict: one was
    """
    if restore_plan(data).exists():
        raise Conflict(text("command.restore_unfinished", path=data.root), hint=text("command.restore_unfinished_hint"))


def check_port(address: str, port: int) -> int:
    """Check that the port can be listened on, and return it; for 0, return one that is free.

    :raises Conflict: the port is in use
    :raises Denied: this user may not listen on it
    :raises Invalid: the address is not one of this machine
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do it: a port that a closed connection still holds for a minute is free for all that matters.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            raise _port_error(address, port, error) from error
        return int(probe.getsockname()[1])


def _port_error(address: str, port: int, error: OSError) -> Conflict | Denied | Invalid:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            text("command.port_in_use", port=port), field="port", hint=text("command.port_in_use_hint", port=port)
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(
            text("command.port_not_allowed", port=port), field="port", hint=text("command.port_not_allowed_hint")
        )
    return Invalid(
        text("command.address_unusable", address=address, reason=error.strerror), hint=text("command.address_hint")
    )
