"""The keys of the sources: files that only this user can read, and this process' memory. They go nowhere else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import structlog

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from homeagent_sdk.logging import hide
from homeagent_sdk.paths import flush
from provider_service.source import ENVIRONMENT_SOURCE, is_source_name

MAX_KEY_LENGTH = 4096
_KEY = re.compile(r"[\x21-\x7e]+")
_log = structlog.get_logger("provider_service.keys")


class KeyStore:
    """The keys by source.

    :param folder: a file for each source, mode 0600, in a folder of mode 0700
    :param environment_key: the key of the source that the environment defines; never stored
    """

    def __init__(self, folder: Path, environment_key: str | None = None) -> None:
        self._folder = folder
        self._keys: dict[str, str] = {}
        if environment_key:
            self._remember(ENVIRONMENT_SOURCE, checked_key(environment_key))

    def load(self) -> None:
        """Read the files; blocking. A file that cannot be read is logged, its source then has no key.

        :raises Unavailable: the folder cannot be made or read
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            files = sorted(path for path in self._folder.iterdir() if is_source_name(path.name))
        except OSError as error:
            raise _unusable(self._folder, error) from error
        for path in files:
            try:
                path.chmod(0o600)
                self._remember(path.name, checked_key(path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError, Invalid) as error:
                _log.error("the key of a source cannot be read", source=path.name, problem=type(error).__name__)

    def get(self, source: str) -> str | None:
        """Return the key of a source, or None."""
        return self._keys.get(source)

    def is_set(self, source: str) -> bool:
        """Whether a source has a key."""
        return source in self._keys

    def set(self, source: str, key: str | None) -> None:
        """Store the key of a source, or remove it; blocking, and on the disk when it returns.

        :raises Invalid: the name or the key cannot be one
        :raises Conflict: the source's key comes from the environment
        :raises Unavailable: the file cannot be written
        """
        if not is_source_name(source):
            raise Invalid(text("provider.bad_source_name"), field="source")
        if source == ENVIRONMENT_SOURCE:
            raise Conflict(text("provider.key_from_environment"), field="source")
        checked = checked_key(key) if key else None
        try:
            self._write(source, checked)
        except OSError as error:
            raise _unusable(self._folder, error) from error
        if checked is None:
            self._keys.pop(source, None)
        else:
            self._remember(source, checked)

    def redactor(self, source: str) -> Callable[[str], str]:
        """Return a function that masks the key of a source in what came from outside."""
        key = self._keys.get(source)
        return (lambda told: told.replace(key, "***")) if key else (lambda told: told)

    def _remember(self, source: str, key: str) -> None:
        hide(key)
        self._keys[source] = key

    def _write(self, source: str, key: str | None) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / source
        if key is None:
            path.unlink(missing_ok=True)
        else:
            partial = self._folder / f".{source}.partial"
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(key)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        flush(self._folder)


def checked_key(key: str) -> str:
    """Return a key without the space around it.

    :raises Invalid: it cannot be a key; the message does not quote it
    """
    stripped = key.strip()
    if not _KEY.fullmatch(stripped) or len(stripped) > MAX_KEY_LENGTH:
        raise Invalid(text("provider.bad_key_text", limit=MAX_KEY_LENGTH), field="key")
    return stripped


def _unusable(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(
        text("provider.keys_unusable", path=folder, problem=error.strerror or "?"), hint=text("provider.disk_hint")
    )
