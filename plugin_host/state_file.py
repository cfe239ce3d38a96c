"""What the plugin host keeps between its starts: which plugins are disabled, and how often each was started."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from homeagent_sdk.errors import Unavailable
from homeagent_sdk.logging import get_logger

_log = get_logger("state_file")


class StateFile:
    """``plugins/state.json``, written whole and renamed into place.

    :param path: need not exist
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._disabled: set[str] = set()
        self._generations: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._is_changed = False

    async def load(self) -> None:
        """Read the file. One that is damaged is put aside, with a log line, and nothing is disabled."""
        try:
            body = await asyncio.to_thread(_read, self._path)
            self._disabled = {str(name) for name in body.get("disabled", [])}
            self._generations = {str(name): int(count) for name, count in body.get("generations", {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            aside = self._path.with_suffix(".damaged")
            await asyncio.to_thread(os.replace, self._path, aside)
            _log.error(
                "the state of the plugins cannot be read; all are enabled", reason=str(error), moved_to=str(aside)
            )

    def is_disabled(self, name: str) -> bool:
        """Whether a person has disabled the plugin."""
        return name in self._disabled

    async def set_disabled(self, name: str, disabled: bool) -> None:
        """Disable or enable a plugin for good.

        :raises Unavailable: it cannot be written; nothing has changed
        """
        before = set(self._disabled)
        if disabled:
            self._disabled.add(name)
        else:
            self._disabled.discard(name)
        try:
            await self._write()
        except OSError as error:
            self._disabled = before
            raise Unavailable(
                f"{self._path} cannot be written: {error.strerror}", hint="make room on the disk, or correct its mode"
            ) from error

    def next_generation(self, name: str) -> int:
        """Count one more start of a plugin. The hub refuses a process older than the one that it knows."""
        self._generations[name] = self._generations.get(name, 0) + 1
        self._is_changed = True
        return self._generations[name]

    async def save_if_changed(self) -> None:
        """Write counted starts; one write serves all that wait for it. A full disk is logged, not raised."""
        async with self._lock:
            if not self._is_changed:
                return
        try:
            await self._write()
        except OSError as error:
            _log.warning("the state of the plugins cannot be written", path=str(self._path), reason=str(error))

    async def _write(self) -> None:
        async with self._lock:
            self._is_changed = False
            body = {"version": 1, "disabled": sorted(self._disabled), "generations": self._generations}
            await asyncio.to_thread(_replace, self._path, json.dumps(body, indent=1, sort_keys=True))


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
