"""A folder that becomes a backup in one step, or nothing at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Cancelled, Conflict, Denied, HomeAgentError, Unavailable
from homeagent_sdk.paths import flush

_SUFFIX: Final = ".homeagent-partial"
_CHUNK_BYTES: Final = 1024 * 1024
_SPARE_BYTES: Final = 16 * 1024 * 1024


class Draft:
    """A backup that is being made: ``.<name>.homeagent-partial`` beside its target.

    :ivar folder: where the files go
    :ivar given_up: set from another thread, it ends whatever is being copied
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}{_SUFFIX}")
        self.given_up = threading.Event()
        self._lock: int | None = None

    def begin(self) -> None:
        """Make the folder, and remove those beside it that killed backups left.

        :raises Conflict: there is something under the target's name, or another backup is being made there
        :raises Unavailable: it cannot be made
        """
        with written(self.target):
            if self.target.is_symlink() or (self.target.exists() and not _is_empty_folder(self.target)):
                raise Conflict(text("command.backup_exists", path=self.target), hint=text("command.backup_exists_hint"))
            make_folders(self.target.parent)
            for left in self.target.parent.glob(f".*{_SUFFIX}"):
                _remove_if_left(left)
            try:
                self.folder.mkdir(mode=0o700)
            except FileExistsError as error:
                raise Conflict(text("command.backup_busy", path=self.target.parent)) from error
            self._lock = _locked(self.folder)

    def path(self, name: str) -> Path:
        """Return where a file goes, making the folders above it."""
        path = self.folder / name
        with written(path):
            make_folders(path.parent)
        return path

    def take(self, source: Path, name: str) -> None:
        """Move a file into the draft; to another disk it is copied."""
        path = self.path(name)
        with written(path):
            try:
                source.rename(path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
            else:
                return
        self.copy(source, name)

    def copy(self, source: Path, name: str) -> None:
        """Copy a file into the draft, and flush it.

        :raises Cancelled: the draft was given up
        """
        copy_file(source, self.path(name), self.given_up)

    def publish(self) -> None:
        """Give the draft its name; from then on it is a backup."""
        with written(self.target):
            for here, _, files in os.walk(self.folder):
                for name in files:
                    os.chmod(os.path.join(here, name), 0o600)
                flush(Path(here))
            self.folder.rename(self.target)
            flush(self.target.parent)

    def discard(self) -> None:
        """Remove what is not published; safe to call at any time."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self.folder)
            os.close(lock)


def copy_file(source: Path, target: Path, given_up: threading.Event) -> None:
    """Copy a file into a new one that only its owner can read, and flush it; links are not followed.

    :raises Cancelled: it was given up
    """
    with written(target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as copy, open(source, "rb", opener=_not_a_link) as original:
            while chunk := original.read(_CHUNK_BYTES):
                if given_up.is_set():
                    raise Cancelled(text("command.backup_given_up"))
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())


def require_room(folder: Path, size: int) -> None:
    """Check that a disk has room for so many bytes, and a little more.

    :raises Unavailable: it has not
    """
    free = shutil.disk_usage(folder).free
    if free < size + _SPARE_BYTES:
        needed, room = (f"{count / 1024 / 1024:.0f} MB" for count in (size, free))
        raise Unavailable(
            text("command.backup_no_room", path=folder, needed=needed, free=room),
            hint=text("command.backup_cannot_write_hint"),
        )


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what the system says of a file into an error that says what to do."""
    try:
        yield
    except HomeAgentError:
        raise
    except PermissionError as error:
        raise Denied(
            text("command.backup_denied", path=error.filename or path), hint=text("command.backup_denied_hint")
        ) from error
    except OSError as error:
        raise Unavailable(
            text("command.backup_cannot_write", path=error.filename or path, reason=error.strerror or error),
            hint=text("command.backup_cannot_write_hint"),
        ) from error


def make_folders(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def unmade(folder: Path) -> Path:
    """Rename a folder so that it is no backup any more, but a draft that was left; return its new path."""
    path = folder.with_name(f".{folder.name}{_SUFFIX}")
    folder.rename(path)
    return path


def _locked(folder: Path) -> int | None:
    """Lock a folder for as long as this process lives; None if another one has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_if_left(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    lock = _locked(folder)
    if lock is not None:
        shutil.rmtree(folder)
        os.close(lock)


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _not_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
