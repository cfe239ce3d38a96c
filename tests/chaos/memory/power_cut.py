"""A disk that forgets what was not synced when the power goes, under SQLite in the same process.

:class:`Disk` keeps, for each file that SQLite writes, what is safe and every later version of every sector. A cut lets
for each sector one of these stand, so that pages are torn and writes arrive in any order; names of files that were
made, renamed or deleted hold only once their folder is synced. Everything else is SQLite's own: the calls are passed
on to the system's files, shared memory included, so that threads and WAL work as they always do.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

SECTOR_BYTES = 512
_unlink = os.unlink
_NAMED_BY_SQLITE = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
"""Files whose first sync syncs their folder too, as SQLite's own access to files on Unix does."""


class Fate:
    """Which of the writes since the last sync reached the medium: one answer for a whole cut.

    :param now: the moment of the cut, as :class:`Disk` counts them
    """

    def __init__(self, dice: random.Random, now: int) -> None:
        self._dice = dice
        self.kind = dice.choice(("nothing", "everything", "any", "most", "in order", "in order"))
        self._until = dice.randint(max(0, now - 40), now)
        self._has_garbage = dice.random() < 0.3

    def version(self, moments: list[int]) -> int:
        """Return which of the later versions of a sector stands, -1 for what was safe.

        :param moments: when each of them was written, in order
        """
        last = len(moments) - 1
        if self.kind == "nothing":
            return -1
        if self.kind == "everything" or (self.kind == "most" and self._dice.random() < 0.9):
            return last
        if self.kind == "in order":
            arrived = sum(moment < self._until for moment in moments) - 1
            is_torn = arrived < last and moments[arrived + 1] == self._until
            return arrived + (is_torn and self._dice.random() < 0.5)
        return self._dice.randint(-1, last)

    def never_written(self) -> bytes:
        """Return what stands in a sector that belongs to a file by its size and was never written."""
        return self._dice.randbytes(SECTOR_BYTES) if self._has_garbage else bytes(SECTOR_BYTES)


class _File:
    """What a file holds for certain, and what it may hold."""

    def __init__(self, content: bytes) -> None:
        self.safe = bytearray(content)
        self._later: dict[int, list[tuple[int, bytes]]] = {}
        self._sizes: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        return self._sizes[-1][1] if self._sizes else len(self.safe)

    def write(self, moment: int, offset: int, data: bytes) -> None:
        end = offset + len(data)
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            content = bytearray(self._newest(sector))
            first, last = max(offset, start), min(end, start + SECTOR_BYTES)
            content[first - start : last - start] = data[first - offset : last - offset]
            self._later.setdefault(sector, []).append((moment, bytes(content)))
        if end > self.size:
            self._sizes.append((moment, end))

    def replace(self, moment: int, content: bytes) -> None:
        """It was written past SQLite, and holds this now."""
        if self.newest() != content:
            self.truncate(moment, 0)
            self.write(moment, 0, content)

    def newest(self) -> bytes:
        return b"".join(map(self._newest, range(-(-self.size // SECTOR_BYTES))))[: self.size]

    def truncate(self, moment: int, size: int) -> None:
        last = -(-max(self.size, len(self.safe)) // SECTOR_BYTES)
        for sector in range(size // SECTOR_BYTES, last):
            kept = self._newest(sector)[: max(0, size - sector * SECTOR_BYTES)]
            self._later.setdefault(sector, []).append((moment, kept.ljust(SECTOR_BYTES, b"\0")))
        self._sizes.append((moment, size))

    def sync(self) -> None:
        size = self.size
        self.safe.extend(bytes(max(0, size - len(self.safe))))
        for sector, versions in self._later.items():
            start = sector * SECTOR_BYTES
            content = versions[-1][1][: max(0, size - start)]
            self.safe[start : start + len(content)] = content
        del self.safe[size:]
        self._later.clear()
        self._sizes.clear()

    def after(self, fate: Fate) -> bytes:
        """Return what is left of the file after a cut."""
        chosen = fate.version([moment for moment, _ in self._sizes])
        size = self._sizes[chosen][1] if chosen >= 0 else len(self.safe)
        left = bytearray(self.safe.ljust(size, b"\0"))
        for sector, versions in sorted(self._later.items()):
            chosen = fate.version([moment for moment, _ in versions])
            start = sector * SECTOR_BYTES
            if chosen >= 0:
                left[start : start + SECTOR_BYTES] = versions[chosen][1]
            elif start >= len(self.safe):
                left[start : start + SECTOR_BYTES] = fate.never_written()
        return bytes(left[:size].ljust(size, b"\0"))

    def _newest(self, sector: int) -> bytes:
        if versions := self._later.get(sector):
            return versions[-1][1]
        start = sector * SECTOR_BYTES
        return bytes(self.safe[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


class Disk:
    """What stands on the medium, of all files that SQLite opened through :func:`register`.

    What was there when a file is first seen counts as safe. Every method may be called by any thread.

    :param lies: a sync returns at once and makes nothing safe, as with some disks
    """

    def __init__(self, *, lies: bool = False) -> None:
        self.lies = lies
        self.is_cut = False
        self.lock = threading.RLock()
        self._moment = 0
        self._cut_at: int | None = None
        self._on_cut: Callable[[], None] = lambda: None
        self._files: dict[str, _File] = {}
        self._by_others: set[str] = set()
        self._safe_names: dict[str, _File] = {}
        self._renamings: list[tuple[int, str, dict[str, _File | None]]] = []

    def cut_after(self, changes: int, dice: random.Random, then: Callable[[], None]) -> None:
        """Let the power go in the middle of the n-th change to a file from now on; the first call counts.

        :param then: called at once after it, by the thread that made the change
        """

        def on_cut() -> None:
            self.cut(dice)
            then()

        with self.lock:
            if self._cut_at is None:
                self._cut_at, self._on_cut = self._moment + changes, on_cut

    def cut(self, dice: random.Random) -> str:
        """Put into the files what is left of them, at random; from now on every call fails.

        :returns: which kind of :class:`Fate` it was
        """
        with self.lock:
            for path in self._by_others:
                self._files[path].replace(self._moment, Path(path).read_bytes())
            fate = Fate(dice, self._moment)
            names = self._names_after(fate)
            for path in {*self._files, *self._safe_names, *names}:
                for gone in (path, f"{path}-shm"):
                    if os.path.exists(gone) and gone not in names:
                        _unlink(gone)
            for path, file in names.items():
                Path(path).write_bytes(file.after(fate))
            self.is_cut = True
            return fate.kind

    def _names_after(self, fate: Fate) -> dict[str, _File]:
        """Return which files there are: of each folder, its changes up to some moment."""
        names = dict(self._safe_names)
        for folder in {folder for _, folder, _ in self._renamings}:
            changes = [change for change in self._renamings if change[1] == folder]
            for _, _, changed in changes[: fate.version([moment for moment, _, _ in changes]) + 1]:
                _apply(names, changed)
        return names

    # -- what happens to files ------------------------------------------------------------------------------------

    def see(self, path: str, *, is_new: bool, by_others: bool = False) -> None:
        """A file is opened; a new one has no safe name yet.

        :param by_others: it is not SQLite that writes it, so what it holds is looked up when it matters
        """
        with self.lock:
            (self._by_others.add if by_others else self._by_others.discard)(path)
            if path in self._files:
                return
            self._files[path] = _File(b"" if is_new else Path(path).read_bytes())
            if is_new:
                self._rename({path: self._files[path]})
            else:
                self._safe_names[path] = self._files[path]

    def see_before_deletion(self, path: str) -> None:
        """A file is about to be deleted, which may be the first that is heard of it."""
        with self.lock:
            if path not in self._files and os.path.isfile(path):
                self.see(path, is_new=False, by_others=True)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Bytes were written; the power may go in the middle of it."""
        with self.lock:
            self._files[path].write(self._moment, offset, data)
            self._pass()

    def truncate(self, path: str, size: int) -> None:
        """A file was cut or extended to a size."""
        with self.lock:
            self._files[path].truncate(self._moment, size)
            self._pass()

    def sync(self, path: str, *, with_folder: bool = False) -> None:
        """A file is synced: what it holds is safe when this returns."""
        with self.lock:
            self._pass()
            if not self.lies and path in self._files:
                if path in self._by_others:
                    self._files[path].replace(self._moment, Path(path).read_bytes())
                self._files[path].sync()
                if with_folder:
                    self.sync_folder(os.path.dirname(path))

    def sync_folder(self, folder: str) -> None:
        """A folder is synced: the names in it are safe when this returns."""
        with self.lock:
            self._pass()
            if self.lies:
                return
            for _, changed_folder, changed in self._renamings:
                if changed_folder == folder:
                    _apply(self._safe_names, changed)
            self._renamings = [change for change in self._renamings if change[1] != folder]

    def delete(self, path: str) -> None:
        """A file was deleted."""
        with self.lock:
            self._by_others.discard(path)
            if self._files.pop(path, None) is not None:
                self._rename({path: None})
            self._pass()

    def move(self, path: str, target: str) -> None:
        """A file was renamed, in the same folder."""
        with self.lock:
            if (file := self._files.pop(path, None)) is not None:
                self._files[target] = file
                self._rename({target: file, path: None})
                if path in self._by_others:
                    self._by_others = (self._by_others - {path}) | {target}
            self._pass()

    def fail_if_cut(self) -> None:
        """Raise what SQLite is told when there is no power."""
        if self.is_cut:
            raise apsw.IOError("the power is out")

    def _rename(self, changed: dict[str, _File | None]) -> None:
        self._renamings.append((self._moment, os.path.dirname(next(iter(changed))), changed))

    def _pass(self) -> None:
        """One change has happened, or has begun."""
        self.fail_if_cut()
        self._moment += 1
        if self._cut_at is not None and self._moment > self._cut_at:
            self._on_cut()
            self.fail_if_cut()


def _apply(names: dict[str, _File], changed: dict[str, _File | None]) -> None:
    for path, file in changed.items():
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


class _Access(apsw.VFS):
    def __init__(self, name: str, disk: Disk, is_default: bool) -> None:
        # By name: an empty one means the default, which would be this one itself.
        self._base = apsw.vfs_names()[0]
        self._disk = disk
        super().__init__(name, self._base, makedefault=is_default)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile(self._base, name, flags)
        return _OpenFile(self._base, self._disk, name, flags)

    def excepthook(self, *exception: Any) -> bool:
        """See :meth:`_OpenFile.excepthook`."""
        return self._disk.is_cut or super().excepthook(*exception)

    def xDelete(self, name: str, syncdir: bool) -> None:
        with self._disk.lock:
            self._disk.fail_if_cut()
            super().xDelete(name, syncdir)
            self._disk.delete(name)
            if syncdir:
                self._disk.sync_folder(os.path.dirname(name))


class _OpenFile(apsw.VFSFile):
    def __init__(self, base: str, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path: str = name.filename() if isinstance(name, apsw.URIFilename) else name
        with disk.lock:
            disk.fail_if_cut()
            is_new = not os.path.exists(self._path)
            super().__init__(base, name, flags)
            disk.see(self._path, is_new=is_new)
        self._folder_waits = is_new and bool(flags[0] & _NAMED_BY_SQLITE)

    def excepthook(self, *exception: Any) -> bool:
        """SQLite meets the missing power in places where it cannot raise; whoever called it is told all the same."""
        return self._disk.is_cut or super().excepthook(*exception)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.fail_if_cut()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._disk.lock:
            self._disk.fail_if_cut()
            super().xWrite(data, offset)
            self._disk.write(self._path, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with self._disk.lock:
            self._disk.fail_if_cut()
            super().xTruncate(newsize)
            self._disk.truncate(self._path, newsize)

    def xSync(self, flags: int) -> None:
        # The real disk need not be troubled: what would survive is what this one says.
        self._disk.sync(self._path, with_folder=self._folder_waits)
        self._folder_waits = False


def register(disk: Disk, name: str = "power-cut", *, is_default: bool = False) -> apsw.VFS:
    """Make SQLite write through a disk; keep what is returned for as long as it is used.

    :param is_default: for every connection of this process from now on, else for those opened with ``vfs=name``
    """
    return _Access(name, disk, is_default)


@contextmanager
def system_calls(disk: Disk) -> Iterator[None]:
    """Tell a disk of files that the process itself makes, syncs, renames or deletes inside the block."""
    names = ("open", "fsync", "fdatasync", "replace", "rename", "unlink", "remove")
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in names}

    def open_file(path: Any, flags: int, *more: Any, **named: Any) -> int:
        with disk.lock:
            descriptor: int = originals["open"](path, flags, *more, **named)
            if flags & os.O_EXCL:
                disk.see(os.path.abspath(path), is_new=True, by_others=True)
            return descriptor

    def sync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        (disk.sync_folder if os.path.isdir(path) else disk.sync)(path)

    def move(source: Any, target: Any, **more: Any) -> None:
        with disk.lock:
            originals["replace"](source, target, **more)
            disk.move(os.path.abspath(source), os.path.abspath(target))

    def unlink(path: Any, **more: Any) -> None:
        with disk.lock:
            target = os.path.abspath(path)
            disk.see_before_deletion(target)
            originals["unlink"](path, **more)
            disk.delete(target)

    for name, replacement in zip(names, (open_file, sync, sync, move, move, unlink, unlink), strict=True):
        setattr(os, name, replacement)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
