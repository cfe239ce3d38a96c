"""Looks into /proc for the network sockets that a process holds."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TABLES = ("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


def inet_sockets(pid: int) -> list[str]:
    """Return the internet sockets that a process has open, as ``table local-address``; empty if it has none.

    A process' table of sockets is that of its whole network namespace, so the descriptors say which are its own.
    """
    own = set[str]()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found = _SOCKET.fullmatch(os.readlink(descriptor))
        except FileNotFoundError:
            continue
        if found:
            own.add(found[1])
    return [
        f"{table} {fields[1]}"
        for table in _TABLES
        for fields in _entries(Path(f"/proc/{pid}/net/{table}"))
        if fields[9] in own
    ]


def _entries(table: Path) -> list[list[str]]:
    if not table.exists():
        return []
    return [line.split() for line in table.read_text().splitlines()[1:]]
