"""Reads keys so that nobody else sees them: from stdin or a private file, never from the command line."""

from __future__ import annotations

import getpass
import stat
import sys
from pathlib import Path

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Denied, Invalid

_MAX_KEY_CHARACTERS = 16 * 1024


def read_key(file: Path | None, prompt: str) -> str:
    """Return a key from ``file``, or from stdin; on a terminal it is asked for and not shown.

    :raises Denied: others can read the file
    :raises Invalid: there is no key
    """
    if file is not None:
        content = _read_private(file)
    elif sys.stdin.isatty():
        content = getpass.getpass(f"{prompt}: ")
    else:
        content = sys.stdin.read(_MAX_KEY_CHARACTERS)
    key = content.strip()
    if not key:
        raise Invalid(text("command.no_key_given"), hint=text("command.no_key_given_hint"))
    return key


def _read_private(file: Path) -> str:
    with file.open(encoding="utf-8") as opened:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise Denied(
                text("command.key_file_open", path=file, mode=f"{mode:04o}"),
                hint=text("command.key_file_open_hint", path=file),
            )
        return opened.read(_MAX_KEY_CHARACTERS)
