"""The key files by which the services and this command prove to the kernel who they are."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

PEERS_WITH_KEY = ("kernel", "memory", "provider", "host", "operator")

_KEY = re.compile(r"[0-9a-f]{64}\n?")


def create_key_files(folder: Path) -> list[str]:
    """Make the key files that are missing or unreadable as keys; each is made once and then kept.

    :returns: the names of the peers whose key is new
    :raises OSError: the folder cannot be written
    """
    return [peer for peer in PEERS_WITH_KEY if _create_key_file(folder / f"{peer}.key")]


def _create_key_file(path: Path) -> bool:
    try:
        if _KEY.fullmatch(path.read_text(encoding="ascii", errors="replace")):
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
            return False
    except FileNotFoundError:
        pass  # the usual first start
    # Written aside and renamed, so that a crash in between leaves no half key behind.
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
    return True
