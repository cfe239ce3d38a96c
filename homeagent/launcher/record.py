"""``run/launcher.json``: what a running launcher tells the other commands about itself."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent.launcher.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service: ``pid`` is None between two starts, ``started`` is wall time in seconds."""

    pid: int | None
    restarts: int
    started: float


@dataclass(frozen=True, slots=True)
class LauncherRecord:
    """A running launcher. ``address`` is None until the system was ready."""

    pid: int
    port: int | None
    address: str | None
    services: dict[str, ServiceRecord]


def record_path(data: DataDir) -> Path:
    """Return the path of the record."""
    return data.run / "launcher.json"


def write_record(data: DataDir, supervisor: Supervisor, port: int | None, address: str | None) -> None:
    """Write the record in one step, so that no reader sees half of it."""
    services = {
        name: {"pid": service.pid, "restarts": service.restarts, "started": service.started}
        for name, service in supervisor.services.items()
    }
    path = record_path(data)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"pid": os.getpid(), "port": port, "address": address, "services": services}))
    draft.replace(path)


def read_record(data: DataDir) -> LauncherRecord | None:
    """Return the record of the launcher that runs on this data directory, or None if none does."""
    if not is_locked(data):
        return None
    try:
        found: dict[str, Any] = json.loads(record_path(data).read_text())
        services = {name: ServiceRecord(**row) for name, row in found["services"].items()}
        return LauncherRecord(found["pid"], found["port"], found["address"], services)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_locked(data: DataDir) -> bool:
    """Return whether a launcher holds the data directory; it holds a lock for as long as it lives."""
    try:
        descriptor = os.open(data.run / "launcher.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
