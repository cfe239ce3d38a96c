"""Copies of ``memory.db`` for a backup."""

from __future__ import annotations

from pathlib import Path

import apsw

from homeagent_sdk.snapshots import Copies
from memory_service.store.connection import BUSY_MS


def copies_of(path: Path) -> Copies:
    """Return what makes copies of the database, in a folder beside it; what an earlier process left there is removed.

    Blocks, so call it before the event loop runs.
    """
    copies = Copies(path.parent / "backup", {path.name: lambda: _open(path)})
    copies.clear()
    return copies


def _open(path: Path) -> apsw.Connection:
    """Open the database as it is: pages are copied, not rows, so neither words nor functions are needed."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(BUSY_MS)
    return connection
