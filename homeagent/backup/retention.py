"""Removes older backups."""

from __future__ import annotations

import shutil
from pathlib import Path

from homeagent.backup import manifest as manifests
from homeagent.backup.draft import unmade, written
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir, flush


def remove_older(data: DataDir, folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest backups of this data directory that lie in a folder; nothing else there is touched.

    :returns: what was removed
    """
    found = [(manifest.time, path) for path in sorted(folder.iterdir()) if (manifest := _of(data, path)) is not None]
    removed = [path for _, path in sorted(found, reverse=True)[keep:]]
    for path in removed:
        with written(path):
            # Renamed first, so that one which is half removed is not taken for a backup.
            shutil.rmtree(unmade(path))
            flush(folder)
    return removed


def _of(data: DataDir, path: Path) -> manifests.Manifest | None:
    if path.is_symlink() or path.name.startswith("."):
        return None
    try:
        manifest = manifests.read(path)
    except HomeAgentError:
        return None  # not a backup, or one that this program cannot judge
    return manifest if manifest.data_dir == str(data.root) else None
