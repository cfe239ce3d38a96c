"""Makes a backup: of a running HomeAgent with its services' help, of one that does not run from its files."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import homeagent
from homeagent.backup import manifest as manifests
from homeagent.backup.contents import DATABASES, files_in, folders, is_database
from homeagent.backup.draft import Draft, require_room
from homeagent.backup.manifest import Manifest
from homeagent.backup.standstill import standstill
from homeagent.client import is_running, operator
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Cancelled, Denied, Internal, Invalid, NotFound, Unavailable
from homeagent_sdk.paths import AREAS, DataDir
from homeagent_sdk.snapshots import COPIED, DONE, FROZEN, Snapshot

T = TypeVar("T")
Watch = Callable[[str, int, int], None]
"""Told what is being done (``copy`` or ``check``), and how many bytes of how many are done."""

LIMIT_S: Final = 6 * 3600.0
"""A backup that takes longer is given up."""
_NICENESS: Final = 10


@dataclass(frozen=True, slots=True)
class Request:
    """What to make.

    :ivar target: the folder that becomes the backup; it is new or empty
    """

    target: Path
    with_keys: bool = False
    with_plugin_data: bool = False


@dataclass(frozen=True, slots=True)
class _Moment:
    time: float
    paused_ms: float


async def make(data: DataDir, request: Request, watch: Watch) -> Manifest:
    """Make a backup; it is there as a whole or not at all.

    :raises NotFound: there is nothing to back up
    :raises Conflict: the target exists, or another backup is being made
    :raises Unavailable: a service or the disk could not do its part
    :raises Invalid: the target is none, or a database is damaged
    """
    _check_target(data, request.target)
    draft = Draft(request.target)
    try:
        await _in_thread(draft, draft.begin)
        if is_running(data):
            moment = await _from_services(data, draft, watch)
        else:
            moment = await _in_thread(draft, partial(_from_files, data, draft, watch))
        return await _in_thread(draft, partial(_complete, data, request, draft, moment, watch))
    finally:
        draft.given_up.set()
        await asyncio.to_thread(draft.discard)


async def _in_thread(draft: Draft, work: Callable[[], T]) -> T:
    """Run work in a thread; if this is cancelled, the work is told, and waited for, before anything is removed."""
    task = asyncio.create_task(asyncio.to_thread(_give_way, work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        draft.given_up.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # whatever it is: the person has given up
        raise


def _give_way(work: Callable[[], T]) -> T:
    """Run work in this thread with little priority: checking takes a processor, which turns may need."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
    return work()


# -- from running services --------------------------------------------------------------------------------------------


async def _from_services(data: DataDir, draft: Draft, watch: Watch) -> _Moment:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    total = 0
    async with operator(data) as peer, peer.stream("kernel.backup", {"backup": name}, timeout_s=LIMIT_S) as items:
        async for item in items:
            if item["type"] == FROZEN:
                total = item["bytes"]
                require_room(data.root, total)
                require_room(draft.folder, total)
            elif item["type"] == COPIED:
                watch("copy", item["bytes"], total)
            elif item["type"] == DONE:
                _require_all(item["databases"])
                # While they are collected the stream stays open: the services keep the copies as long as it is.
                await _in_thread(draft, partial(_collect, data, name, draft))
                watch("copy", total, total)
                return _Moment(item["time"], item["paused_ms"])
    raise Internal(text("command.backup_ended"))


def _require_all(databases: list[dict[str, Any]]) -> None:
    """Nothing that a service says about places is believed; only that it is there."""
    told = {f"{row['owner']}/{row['name']}" for row in databases}
    if told != DATABASES.keys():
        raise Internal(text("command.backup_other", names=", ".join(sorted(told ^ DATABASES.keys()))))


def _collect(data: DataDir, name: str, draft: Draft) -> None:
    for path in DATABASES:
        owner, file = path.split("/")
        folder = data.root.resolve() / owner / "backup" / name
        source = folder / file
        try:
            is_there = manifests.is_plain_file(source) and folder.resolve() == folder
        except PermissionError as error:
            raise _not_ours(folder) from error
        if not is_there:
            if not os.access(folder.parent.parent, os.R_OK | os.X_OK):
                raise _not_ours(folder)
            raise Unavailable(text("command.backup_vanished", service=owner), hint=text("command.backup_again"))
        draft.take(source, path)


def _not_ours(folder: Path) -> Denied:
    return Denied(text("command.backup_denied", path=folder), hint=text("command.backup_denied_hint"))


# -- from files -------------------------------------------------------------------------------------------------------


def _from_files(data: DataDir, draft: Draft, watch: Watch) -> _Moment:
    import apsw

    missing = [path for path in DATABASES if not (data.root / path).is_file()]
    if missing:
        raise NotFound(
            text("command.backup_missing", names=", ".join(missing), path=data.root),
            hint=text("command.backup_missing_hint"),
        )
    with standstill(data), ExitStack() as held:
        moment = _Moment(time.time(), 0.0)
        snapshots = {}
        for path in DATABASES:
            snapshots[path] = Snapshot(apsw.Connection(str(data.root / path)))
            held.callback(snapshots[path].close)
        total = sum(snapshot.size_bytes for snapshot in snapshots.values())
        require_room(draft.folder, total)
        before = 0
        for path, snapshot in snapshots.items():
            for copied in _slices(snapshot, draft.path(path), draft):
                watch("copy", before + copied, total)
            before += snapshot.size_bytes
        _remove_left_copies(data)
    return moment


def _slices(snapshot: Snapshot, target: Path, draft: Draft) -> Iterator[int]:
    """Copy a database slice by slice, until it is whole or the draft is given up."""
    with closing(snapshot.copy_to(target)) as slices:
        for copied in slices:
            if draft.given_up.is_set():
                raise Cancelled(text("command.backup_given_up"))
            yield copied


def _remove_left_copies(data: DataDir) -> None:
    """Remove what services left that were killed during a backup and not started since."""
    for owner in {path.split("/")[0] for path in DATABASES}:
        left = data.root / owner / "backup"
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)


# -- the rest ---------------------------------------------------------------------------------------------------------


def _complete(data: DataDir, request: Request, draft: Draft, moment: _Moment, watch: Watch) -> Manifest:
    """Add the files beside the databases, check everything, write the manifest, and give the backup its name."""
    paths = list(DATABASES)
    for folder in folders(with_keys=request.with_keys, with_plugin_data=request.with_plugin_data):
        paths += [path for path in files_in(data.root, folder) if _add_file(data.root / path, path, draft)]
    total = sum((draft.folder / path).stat().st_size for path in paths)
    files = manifests.describe(draft.folder, paths, lambda done: watch("check", done, total))
    manifest = Manifest(
        time=moment.time,
        paused_ms=moment.paused_ms,
        program=homeagent.__version__,
        data_dir=str(data.root),
        with_keys=request.with_keys,
        with_plugin_data=request.with_plugin_data,
        files=files,
    )
    manifests.write(draft.folder, manifest)
    draft.publish()
    return manifest


def _add_file(source: Path, path: str, draft: Draft) -> bool:
    """Copy a file; a database that may be in use is copied as of one moment. False if it was deleted meanwhile."""
    import apsw

    try:
        if path.startswith("plugin_data/") and is_database(source):
            with closing(Snapshot(apsw.Connection(str(source)))) as snapshot:
                for _ in _slices(snapshot, draft.path(path), draft):
                    pass
        else:
            draft.copy(source, path)
    except Unavailable as error:
        if not source.exists() and not isinstance(error.__cause__, apsw.Error):
            (draft.folder / path).unlink(missing_ok=True)
            return False
        raise
    return True


def _check_target(data: DataDir, target: Path) -> None:
    """A backup must not lie in a folder that it copies, or that belongs to a service."""
    resolved = target.resolve()
    for area in AREAS:
        if resolved.is_relative_to((data.root / area).resolve()) or resolved == data.root.resolve():
            raise Invalid(
                text("command.backup_inside", path=target), field="DIR", hint=text("command.backup_inside_hint")
            )
