"""What belongs in a backup, and where it lies in the data directory and, under the same names, in the backup."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DATABASES: Final = {
    "kernel/config.db": 2,
    "kernel/journal.db": 2,
    "memory/memory.db": 2,
    "provider/usage.db": 1,
}
"""The databases, each with the newest schema that this program understands; a test compares them with the services'."""

ALWAYS: Final = ("memory/media", "memory/conversations", "provider/adapters")
"""Folders beside the databases that go with them: media, the readable log of conversations, the user's own adapters."""
PLUGIN_DATA: Final = ("plugin_data",)
KEYS: Final = ("keys", "provider/keys")
IN_STEP: Final = ("memory/conversations",)
"""Folders that follow a database: what they have beyond the backup speaks of what is not there any more."""

SIDE_FILES: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database; a copy has none of it."""
_SQLITE: Final = b"SQLite format 3\0"


def folders(*, with_keys: bool, with_plugin_data: bool) -> tuple[str, ...]:
    """Return the folders whose files are part of a backup."""
    return ALWAYS + (PLUGIN_DATA if with_plugin_data else ()) + (KEYS if with_keys else ())


def files_in(root: Path, folder: str) -> Iterator[str]:
    """Yield the files of a folder, by their path below ``root``; no links, and nothing that begins with a dot."""
    for here, names, files in os.walk(root / folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in sorted(files):
            path = Path(here, name)
            if name.startswith(".") or not _is_file(path) or _belongs_to_database(path):
                continue
            yield path.relative_to(root).as_posix()


def is_database(path: Path) -> bool:
    """Whether a file is a database of SQLite's."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False  # deleted since it was listed


def _belongs_to_database(path: Path) -> bool:
    """Whether it is a side file: the database's copy has what is in it."""
    return any(
        path.name.endswith(suffix) and path.with_name(path.name.removesuffix(suffix)).exists() for suffix in SIDE_FILES
    )
