"""Where everything lies: the data directory, its folders, and a socket directory that is short enough."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homeagent_sdk.errors import Invalid

AREAS = ("kernel", "memory", "provider", "plugins", "plugin_data", "log", "run", "keys")
RUN_DIR_VARIABLE, KEYS_DIR_VARIABLE = "HOMEAGENT_RUN_DIR", "HOMEAGENT_KEYS_DIR"
"""Environment variables that name the folders ``run`` and ``keys`` where these lie outside the data directory: where
each service runs as a user of its own, sockets are all that they share, and keys are laid out by whoever starts them.
"""

SOCKET_PATH_LIMIT_BYTES = 107
"""What the kernel of Linux takes for the path of a Unix socket, without the closing zero."""

_OUTSIDE = {"run": RUN_DIR_VARIABLE, "keys": KEYS_DIR_VARIABLE}
_SOCKET_NAME_RESERVE_BYTES = 32
_FOREIGN_FILE_SYSTEMS = frozenset({"9p", "drvfs", "v9fs", "fuse.drvfs"})


class DataDir:
    """The data directory and its folders, one for each owner.

    The paths are computed, not touched, until :meth:`create`. ``run`` is a folder of its own elsewhere where the data
    directory's path is too long for a socket; ``<root>/run`` is then a symbolic link to it, so that all processes
    agree, whatever their environment. ``HOMEAGENT_RUN_DIR`` and ``HOMEAGENT_KEYS_DIR`` put these two folders elsewhere;
    they are then somebody else's to make.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(root)))

    def __repr__(self) -> str:
        return f"DataDir({str(self.root)!r})"

    @property
    def kernel(self) -> Path:
        """``config.db`` and ``journal.db`` of the kernel."""
        return self.root / "kernel"

    @property
    def memory(self) -> Path:
        """``memory.db`` and the caches of the memory service."""
        return self.root / "memory"

    @property
    def provider(self) -> Path:
        """Keys, usage and the user's own adapters of the provider service."""
        return self.root / "provider"

    @property
    def plugins(self) -> Path:
        """Plugins that the user installed, a folder each."""
        return self.root / "plugins"

    @property
    def plugin_data(self) -> Path:
        """What plugins keep, a folder each."""
        return self.root / "plugin_data"

    @property
    def log(self) -> Path:
        """A log file for each process."""
        return self.root / "log"

    @property
    def keys(self) -> Path:
        """A key file for each peer of the bus that proves itself by one."""
        return _given(KEYS_DIR_VARIABLE) or self.root / "keys"

    @property
    def run(self) -> Path:
        """The sockets of the bus, and what the launcher tells about itself."""
        if given := _given(RUN_DIR_VARIABLE):
            return given
        plain = self.root / "run"
        if plain.is_symlink():
            return Path(os.readlink(plain))
        return plain if _fits(plain) else _short_run_directory(self.root)

    def key_file(self, peer: str) -> Path:
        """Return the path of a peer's key file."""
        return self.keys / f"{peer}.key"

    def create(self, *areas: str) -> DataDir:
        """Make the folders (mode 0700) that are missing, and check that they can be used.

        :param areas: names out of :data:`AREAS`; all of them by default
        :raises Invalid: the directory cannot be used; the message says why, the hint what to do
        """
        self.check()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for area in areas or AREAS:
                if area in _OUTSIDE and (given := _given(_OUTSIDE[area])):
                    _require_usable(given, is_written=area != "keys")
                    continue
                folder = self._create_run() if area == "run" else self.root / area
                folder.mkdir(mode=0o700, exist_ok=True)
                _require_usable(folder)
        except OSError as error:
            raise _unusable(self.root, error.strerror or str(error)) from error
        return self

    def check(self) -> None:
        """Check what can be known without writing.

        :raises Invalid: not a directory, not permitted, or on a file system without sockets and safe databases
        """
        existing = self.root
        try:
            while not existing.exists():
                existing = existing.parent
        except OSError as error:
            raise _unusable(self.root, error.strerror or str(error)) from error
        kind = _file_system_of(existing)
        if kind in _FOREIGN_FILE_SYSTEMS:
            raise Invalid(
                f"the data directory {self.root} is on a Windows file system ({kind})",
                field="data_dir",
                hint="sockets and databases are not safe there: choose a directory of Linux itself, such as "
                "~/.local/share/homeagent",
            )
        if not existing.is_dir():
            raise _unusable(self.root, f"{existing} is not a directory")
        _require_usable(existing)

    def _create_run(self) -> Path:
        plain = self.root / "run"
        run = self.run
        if run == plain:
            return run
        try:
            _make_private(run)
        except OSError:
            # The link of an earlier login may point below a runtime directory that is gone with that login.
            plain.unlink(missing_ok=True)
            run = _short_run_directory(self.root)
            _make_private(run)
        if not plain.is_symlink():
            try:
                plain.symlink_to(run)
            except FileExistsError:
                if plain.is_symlink():
                    return Path(os.readlink(plain))
                plain.rmdir()
                plain.symlink_to(run)
        return run


@contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Give a name for the socket ``path`` that fits the limit of the system, valid inside the ``with`` block.

    Bind or connect inside the block; a long path is reached through a descriptor of its folder.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, written to the disk; blocks until they are.

    :raises OSError: the disk did not take it, or there is nothing there
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _given(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(os.path.abspath(value)) if value else None


def _fits(run: Path) -> bool:
    return len(os.fsencode(run)) + 1 + _SOCKET_NAME_RESERVE_BYTES <= SOCKET_PATH_LIMIT_BYTES


def _short_run_directory(root: Path) -> Path:
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        candidate = Path(runtime) / "homeagent" / name
        if _fits(candidate) and os.path.isdir(runtime) and os.access(runtime, os.W_OK | os.X_OK):
            return candidate
    return Path(f"/tmp/homeagent-{os.getuid()}") / name


def _make_private(folder: Path) -> None:
    """Make ``folder`` and its parent, and make sure that nobody else put them there."""
    for step in (folder.parent, folder):
        step.mkdir(mode=0o700, exist_ok=True)
        found = step.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(1, f"{step} belongs to somebody else")
        if stat.S_IMODE(found.st_mode) & 0o077:
            step.chmod(0o700)


def _require_usable(folder: Path, *, is_written: bool = True) -> None:
    if not os.access(folder, os.R_OK | os.X_OK | (os.W_OK if is_written else 0)):
        what = "read and written" if is_written else "read"
        raise _unusable(folder, f"it cannot be {what} by this user")


def _unusable(folder: Path, why: str) -> Invalid:
    return Invalid(
        f"the data directory {folder} cannot be used: {why}",
        field="data_dir",
        hint="give a directory of your own with --data-dir or HOMEAGENT_DATA_DIR, or correct its owner and mode",
    )


def _file_system_of(path: Path) -> str:
    """Return the type of the file system that holds ``path``, or an empty text where /proc does not tell."""
    resolved = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                fields = line.split()
                point = fields[4].replace("\\040", " ")
                inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return ""
    return kind
