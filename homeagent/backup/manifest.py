"""``manifest.json``: what a backup holds, by which it is recognised and checked."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from homeagent.backup.contents import DATABASES
from homeagent.doctor.data import damage_of
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Invalid, NotFound

MANIFEST: Final = "manifest.json"
_FORMAT, _FORMAT_VERSION = "homeagent-backup", 1
_AREAS: Final = ("kernel", "memory", "provider", "plugin_data", "keys")


@dataclass(frozen=True, slots=True)
class File:
    """One file.

    :ivar path: below the backup's folder, and below the data directory; with ``/``
    :ivar schema: of one of the four databases, its version; None for all other files
    """

    path: str
    bytes: int
    sha256: str
    schema: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup.

    :ivar time: the moment that the databases show, seconds since 1970
    :ivar paused_ms: for how long turns waited for it
    :ivar program: the version of HomeAgent that made it
    :ivar data_dir: of which data directory it is
    """

    time: float
    paused_ms: float
    program: str
    data_dir: str
    with_keys: bool
    with_plugin_data: bool
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands in the file."""
        return {"format": _FORMAT, "format_version": _FORMAT_VERSION, **asdict(self)}


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into a backup's folder, and flush it."""
    draft = folder / f".{MANIFEST}.new"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(manifest.to_dict(), file, ensure_ascii=False, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MANIFEST)


def read(folder: Path) -> Manifest:
    """Read the manifest of a backup.

    :raises NotFound: the folder is not a backup
    :raises Conflict: a newer program made it
    :raises Invalid: the manifest is damaged, or names files that no backup has
    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(text("command.backup_none", path=folder), hint=text("command.backup_none_hint")) from error
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
        raise NotFound(text("command.backup_none", path=folder), hint=text("command.backup_none_hint"))
    if found.pop("format_version", 0) != _FORMAT_VERSION:
        raise Conflict(text("command.backup_newer", path=folder), hint=text("command.backup_newer_hint"))
    try:
        manifest = Manifest(**{**found, "files": tuple(File(**row) for row in found["files"])})
        _check_paths(manifest)
        float(manifest.time), str(manifest.data_dir)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _unreadable(folder, error) from error
    return manifest


def check(folder: Path, manifest: Manifest, watch: Callable[[int], None]) -> None:
    """Check that a backup is whole, unchanged and understood by this program.

    :param watch: told how many bytes are checked
    :raises Conflict: a database is newer than this program
    :raises Invalid: a file is missing, changed or damaged
    """
    schemas = {file.path: file.schema for file in manifest.files}
    for name, known in DATABASES.items():
        found = schemas.get(name)
        if not isinstance(found, int):
            raise Invalid(text("command.backup_incomplete", path=folder, name=name), field=name)
        if found > known:
            raise Conflict(
                text("command.backup_newer_schema", name=name, version=found, known=known, program=manifest.program),
                hint=text("command.backup_newer_hint"),
            )
    done = 0
    for file in manifest.files:
        path = folder / file.path
        if not is_plain_file(path) or path.stat().st_size != file.bytes or digest_of(path) != file.sha256:
            raise Invalid(
                text("command.backup_changed", path=path), field=file.path, hint=text("command.backup_changed_hint")
            )
        if file.path in DATABASES:
            require_sound(path)
        done += file.bytes
        watch(done)


def describe(folder: Path, paths: Sequence[str], watch: Callable[[int], None]) -> tuple[File, ...]:
    """Return the entries of files, checking the databases among them.

    :raises Invalid: a database is damaged
    """
    files: list[File] = []
    for name in paths:
        path = folder / name
        schema = None
        if name in DATABASES:
            require_sound(path)
            schema = schema_of(path)
        files.append(File(name, path.stat().st_size, digest_of(path), schema))
        watch(sum(file.bytes for file in files))
    return tuple(files)


def require_sound(path: Path) -> None:
    """Check a copy of a database.

    :raises Invalid: it is damaged
    """
    damage = damage_of(path, is_copy=True)
    if damage:
        raise Invalid(
            text("command.backup_damaged", path=path, damage=damage[0]), hint=text("command.backup_damaged_hint")
        )


def schema_of(path: Path) -> int:
    """Return the schema version of a copy of a database."""
    import apsw

    connection = apsw.Connection(
        f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        return int(connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").get)
    finally:
        connection.close()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_plain_file(path: Path) -> bool:
    """Whether there is a file under this very name, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _check_paths(manifest: Manifest) -> None:
    """A manifest could be anybody's: it must not name files outside the folders that a backup has."""
    for file in manifest.files:
        parts = PurePosixPath(file.path).parts
        if not parts or parts[0] not in _AREAS or ".." in parts or len(parts) < 2:
            raise ValueError(file.path)
    if len({file.path for file in manifest.files}) != len(manifest.files):
        raise ValueError("a file is named twice")


def _unreadable(folder: Path, error: Exception) -> Invalid:
    return Invalid(
        text("command.backup_unreadable", path=folder / MANIFEST, reason=error),
        hint=text("command.backup_changed_hint"),
    )
