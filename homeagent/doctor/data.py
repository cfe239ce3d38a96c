"""Examines the data directory: room, permissions, sockets, databases."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import apsw

from homeagent.client import listens
from homeagent.doctor.check import FAIL, OK, WARN, Check, found
from homeagent.launcher.key_files import PEERS_WITH_KEY
from homeagent.launcher.preflight import DISK_REFUSED_BYTES, DISK_WARNED_BYTES
from homeagent_sdk.errors import Invalid
from homeagent_sdk.paths import DataDir

_SOCKETS = ("control.sock", "urgent.sock", "events.sock")
_MAX_DAMAGE_SHOWN = 3
_CHECKED_ELSEWHERE = ("backups", "replaced", "restore")
"""Folders of backups, which are checked when they are made and when they are put back; so are copies on their way."""


def examine_data(data: DataDir) -> Iterator[Check]:
    """Examine the data directory; one that was never made is no fault."""
    try:
        data.check()
    except Invalid as error:
        yield Check("data_dir", FAIL, error.message, error.hint or "")
        return
    if not data.root.exists():
        yield found("data_dir", WARN, "no_data", path=data.root)
        return
    yield _directory(data)
    yield _disk(data)
    yield from _keys(data)
    yield from _sockets(data)
    yield from _databases(data)


def _directory(data: DataDir) -> Check:
    status = data.root.stat()
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid != os.geteuid():
        return found("data_dir", WARN, "data_foreign", path=data.root, uid=status.st_uid)
    if status.st_mode & 0o007:
        return found("data_dir", WARN, "data_open", path=data.root, mode=mode)
    return found("data_dir", OK, "data", path=data.root, mode=mode)


def _disk(data: DataDir) -> Check:
    free = shutil.disk_usage(data.root).free
    state = FAIL if free < DISK_REFUSED_BYTES else WARN if free < DISK_WARNED_BYTES else OK
    finding = "disk" if state == OK else "disk_low"
    return found("disk", state, finding, free=f"{free / 1024 / 1024:.0f} MB", path=data.root)


def _keys(data: DataDir) -> Iterator[Check]:
    if not data.keys.is_dir():
        yield found("keys", WARN, "no_keys", path=data.keys)
        return
    faults = 0
    for path in [data.key_file(peer) for peer in PEERS_WITH_KEY] + sorted((data.provider / "keys").glob("*")):
        if not path.exists():
            faults += 1
            yield found("keys", WARN, "key_missing", path=path)
        elif path.stat().st_mode & 0o077:
            faults += 1
            yield found("keys", FAIL, "key_open", path=path, mode=f"{stat.S_IMODE(path.stat().st_mode):04o}")
    if not faults:
        yield found("keys", OK, "keys")


def _sockets(data: DataDir) -> Iterator[Check]:
    existing = [data.run / name for name in _SOCKETS if (data.run / name).exists()]
    stale = [path for path in existing if not listens(path)]
    if stale:
        yield found("sockets", WARN, "sockets_stale", names=", ".join(path.name for path in stale))
    elif len(existing) == len(_SOCKETS):
        yield found("sockets", OK, "sockets", path=data.run)


def _databases(data: DataDir) -> Iterator[Check]:
    for path in sorted(data.root.rglob("*.db")):
        folders = path.relative_to(data.root).parts[:-1]
        if folders[:1] and (folders[0] in _CHECKED_ELSEWHERE or "backup" in folders):
            continue
        name = f"database {path.relative_to(data.root)}"
        damage = damage_of(path)
        if damage:
            yield found(name, FAIL, "database_damaged", path=path, damage="; ".join(damage[:_MAX_DAMAGE_SHOWN]))
        else:
            yield found(name, OK, "database", size=f"{path.stat().st_size / 1024 / 1024:.1f} MB")


def damage_of(path: Path, *, is_copy: bool = False) -> list[str]:
    """Return what SQLite finds wrong with a database, read without changing it; empty if nothing is.

    :param is_copy: nobody else has it open, so that it can be read without files beside it
    """
    how = "immutable=1" if is_copy else "mode=ro"
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?{how}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    except apsw.Error as error:
        return [str(error)]
    try:
        rows = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    except apsw.Error as error:
        return [str(error)]
    finally:
        connection.close()
    # A word index needs its own service's tokenizer to be checked; the tables behind it are checked like all others.
    return [row for row in rows if row != "ok" and "tokenizer" not in row]
