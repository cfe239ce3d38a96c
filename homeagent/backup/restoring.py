"""Puts a backup in the place of the present databases, in steps that can be gone on with after a kill.

1. The backup is copied into ``restore/new`` of the data directory, and checked.
2. ``restore/plan.json`` is written: from here on the restore will be finished, and HomeAgent does not start before.
3. File by file, the present one is given a second name in ``replaced/<time>``, and the new one takes its place.
4. ``restore`` is removed.

A restore that was killed before step 2 has changed nothing, and what it left is removed by the next one; after it, the
next one only finishes it. Nothing is ever deleted that was there before.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import homeagent
from homeagent.backup import manifest as manifests
from homeagent.backup.contents import DATABASES, IN_STEP, SIDE_FILES, files_in, is_database
from homeagent.backup.draft import copy_file, make_folders, require_room, written
from homeagent.backup.manifest import Manifest
from homeagent.backup.standstill import standstill
from homeagent.launcher.preflight import restore_plan
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Invalid, Unavailable
from homeagent_sdk.paths import DataDir, flush

Watch = Callable[[str, int, int], None]
"""Told what is being done (``check`` or ``copy``), and how many bytes of how many are done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A restore that is to be finished.

    :ivar backup: the folder of the backup
    :ivar time: the moment that the backup shows, seconds since 1970
    :ivar aside: where the files go that are there now, below the data directory
    :ivar files: what is put in place
    :ivar extra: what is only moved aside
    """

    backup: str
    time: float
    aside: str
    files: tuple[str, ...]
    extra: tuple[str, ...]


def unfinished(data: DataDir) -> Plan | None:
    """Return the restore that was interrupted, or None if none was."""
    path = restore_plan(data)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Plan(**{**found, "files": tuple(found["files"]), "extra": tuple(found["extra"])})


def restore(data: DataDir, backup: Path, watch: Watch) -> Plan:
    """Put a backup in place; blocks.

    :raises Conflict: HomeAgent runs, the backup is newer than this program, or another restore is to be finished first
    :raises NotFound: the folder is no backup
    :raises Invalid: the backup is not whole
    :raises Unavailable: the disk could not do its part; nothing was changed, or it can be finished
    """
    data.create("run", "kernel", "memory", "provider")
    with standstill(data):
        plan = unfinished(data)
        if plan is None:
            plan = _prepare(data, backup.absolute(), watch)
        _apply(data, plan)
    return plan


def _prepare(data: DataDir, backup: Path, watch: Watch) -> Plan:
    manifest = manifests.read(backup)
    new = _new(data)
    with written(new):
        if new.parent.exists():
            shutil.rmtree(new.parent)
        require_room(data.root, manifest.bytes)
        _copy_all(backup, manifest, new, watch)
        # The copy is checked, not the backup: what is put in place is what was looked at.
        manifests.check(new, manifest, lambda done: watch("check", done, manifest.bytes))
    paths = tuple(file.path for file in manifest.files)
    extra = tuple(path for folder in IN_STEP for path in files_in(data.root, folder) if path not in set(paths))
    aside = f"replaced/{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    plan = Plan(str(backup), manifest.time, aside, paths, extra)
    _commit(data, plan)
    return plan


def _copy_all(backup: Path, manifest: Manifest, new: Path, watch: Watch) -> None:
    never = threading.Event()
    done = 0
    for file in manifest.files:
        target = new / file.path
        make_folders(target.parent)
        try:
            copy_file(backup / file.path, target, never)
        except FileNotFoundError as error:
            raise _changed(backup / file.path) from error
        except Unavailable as error:
            if not manifests.is_plain_file(backup / file.path):
                raise _changed(backup / file.path) from error
            raise
        done += file.bytes
        watch("copy", done, manifest.bytes)
    for here, _, _ in os.walk(new):
        flush(Path(here))


def _commit(data: DataDir, plan: Plan) -> None:
    """Write the plan: whole, and safe on the disk."""
    path = restore_plan(data)
    draft = path.with_suffix(".new")
    with written(path):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(plan), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        flush(path.parent)
        flush(data.root)


def _apply(data: DataDir, plan: Plan) -> None:
    new, aside = _new(data), data.root / plan.aside
    with written(data.root):
        for path in plan.files:
            if (new / path).exists():
                _keep(data.root / path, aside / path)
                _put(new / path, data.root / path)
        for path in plan.extra:
            if (data.root / path).exists():
                _keep(data.root / path, aside / path)
                (data.root / path).unlink()
        _describe(data, plan, aside)
        # The plan goes first: without it, what is left means nothing.
        restore_plan(data).unlink()
        flush(new.parent)
        shutil.rmtree(new.parent)
        flush(data.root)


def _keep(present: Path, aside: Path) -> None:
    """Give the present file, and what SQLite keeps beside it, a name in the folder of what was replaced."""
    if not any(path.exists() for path in _with_side_files(present)):
        return
    make_folders(aside.parent)
    if present.exists() and present.with_name(f"{present.name}-wal").exists():
        _settle(present)
    for suffix in SIDE_FILES:
        beside = present.with_name(present.name + suffix)
        if beside.exists():
            # It must not be found beside the new database.
            beside.rename(aside.with_name(aside.name + suffix))
    if present.exists() and not aside.exists():
        os.link(present, aside)
    flush(aside.parent)


def _settle(present: Path) -> None:
    """Move the write-ahead log into the database, if that can still be done: then one file is all of it."""
    import apsw

    if not is_database(present):
        return
    try:
        connection = apsw.Connection(str(present))
        try:
            connection.set_busy_timeout(0)
            list(connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1"))
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()
    except apsw.Error:
        return  # a damaged database is a good reason for a restore; it is kept with its log, as it is


def _put(new: Path, present: Path) -> None:
    make_folders(present.parent)
    new.replace(present)
    flush(present.parent)


def _describe(data: DataDir, plan: Plan, aside: Path) -> None:
    """Make a backup of what was replaced, so that it can be put back the same way, if it is sound."""
    if (aside / manifests.MANIFEST).exists():
        return
    there = [path for path in (*plan.files, *plan.extra) if (aside / path).is_file()]
    if not DATABASES.keys() <= set(there):
        return
    try:
        files = manifests.describe(aside, there, lambda _: None)
    except (HomeAgentError, ValueError):
        return  # damaged: it is kept, but cannot be put back by a command
    manifests.write(
        aside,
        Manifest(
            time=time.time(),
            paused_ms=0.0,
            program=homeagent.__version__,
            data_dir=str(data.root),
            with_keys=any(path.startswith(("keys/", "provider/keys/")) for path in there),
            with_plugin_data=any(path.startswith("plugin_data/") for path in there),
            files=files,
        ),
    )


def _with_side_files(path: Path) -> Iterator[Path]:
    yield path
    for suffix in SIDE_FILES:
        yield path.with_name(path.name + suffix)


def _new(data: DataDir) -> Path:
    return restore_plan(data).with_name("new")


def _changed(path: Path) -> Invalid:
    return Invalid(text("command.backup_changed", path=path), hint=text("command.backup_changed_hint"))
