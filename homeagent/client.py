"""This command's place on the bus: the operator, proved by a key file that only the owner's user can read."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homeagent.exit_codes import NotRunning
from homeagent.launcher.record import is_locked
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import TimedOut
from homeagent_sdk.paths import DataDir, short_socket_path

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

CONNECT_TIMEOUT_S = 5.0


def open_peer(data: DataDir) -> BusPeer:
    """Return a new peer, not yet started.

    :raises Denied: the key file cannot be read
    """
    bus = _load_bus()
    name = f"operator-{os.getpid()}-{os.urandom(3).hex()}"
    peer: BusPeer = bus.Peer(data.run, bus.KeyCredential.from_key_file(name, data.key_file("operator")))
    return peer


@asynccontextmanager
async def operator(data: DataDir, timeout_s: float = CONNECT_TIMEOUT_S) -> AsyncIterator[BusPeer]:
    """Connect to the running HomeAgent.

    :raises NotRunning: there is none, or its kernel does not answer
    :raises Denied: this user is not its owner
    """
    if not is_running(data):
        raise not_running(data)
    peer = open_peer(data)
    try:
        await peer.start(timeout_s)
    except TimedOut as error:
        raise NotRunning(text("command.no_answer", seconds=timeout_s), hint=text("command.no_answer_hint")) from error
    try:
        yield peer
    finally:
        await peer.stop()


def is_running(data: DataDir) -> bool:
    """Return whether HomeAgent runs here, or is being started: by a launcher, or by other means."""
    return is_locked(data) or listens(data.run / "control.sock")


def not_running(data: DataDir) -> NotRunning:
    """Return the error that says that nothing runs here, and what to do."""
    return NotRunning(text("command.not_running", path=data.root), hint=text("command.not_running_hint"))


def listens(path: Path) -> bool:
    """Return whether a process listens on a Unix socket; the file alone may be left from one that was killed."""
    try:
        with short_socket_path(path) as name, socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(name)
    except OSError:
        return False
    return True


def _load_bus() -> Any:
    """Import the bus late, and after the sdk's logging, which keeps structlog from loading more than is needed.

    What the bus logs is dropped in a program that has no log of its own: its standard output belongs to the answer.
    """
    from homeagent_sdk import logging

    if not logging.is_configured():
        logging.be_quiet()
    import homeagent_sdk.bus

    return homeagent_sdk.bus
