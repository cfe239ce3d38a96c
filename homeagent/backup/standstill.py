"""Keeps HomeAgent from being started while its files are copied or put back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict
from homeagent_sdk.paths import DataDir


@contextmanager
def standstill(data: DataDir) -> Iterator[None]:
    """Hold the locks of the launcher, of the kernel's bus and of the memory while the block runs.

    :raises Conflict: something runs on the data directory
    """
    data.create("run", "memory")
    with ExitStack() as held:
        for path in (data.run / "launcher.lock", data.run / "hub.lock", data.memory / "memory.db.lock"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict(
                    text("command.backup_running", path=data.root), hint=text("command.backup_running_hint")
                ) from error
        yield
