"""What the owner says the agent's personality is: part of the prompt's fixed part until it is changed."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import apsw
import structlog

from homeagent_sdk.catalogue import text as catalogue_text
from homeagent_sdk.errors import Invalid, NotFound
from kernel.config import ConfigRegistry
from kernel.database import Database
from kernel.prompt.tokens import estimate_tokens

DEFAULT, CUSTOM, LATER = "default", "custom", "later"
"""What the owner can answer when asked for a personality."""
CONVERSATION, COMMAND, FILE, PERSONAL_FILE = "conversation", "command", "file", "personal.md"
"""Who set it."""
SETTING_ORIGIN, BUILT_IN_ORIGIN = "setting", "built_in"
SETTING: Final = "core.agent.personal_prompt"
MOST_BYTES: Final = 16 * 1024
ASK_AGAIN_AFTER_S: Final = 7 * 86400.0

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_log = structlog.get_logger("persona")


@dataclass(frozen=True, slots=True)
class _Version:
    """What was set at one time; ``content`` is None where that was to have the default again."""

    content: str | None
    origin: str
    changed_at: float


@dataclass(frozen=True, slots=True)
class _State:
    """All that is stored.

    :ivar versions: the one in force and the one before it, as far as there are such
    :ivar mode: what the owner chose; None: nothing yet
    :ivar decided_at: when, wall clock
    :ivar file_sha256: of ``personal.md`` as it was imported last
    """

    versions: tuple[_Version, ...] = ()
    mode: str | None = None
    decided_at: float = 0.0
    file_sha256: bytes | None = None


class Persona:
    """The persona in force, the one before it, and whether the owner has chosen; read from memory, written through.

    What was set counts; else the setting ``core.agent.personal_prompt``; else the built-in one, its default.

    :param database: ``config.db``, opened by the caller
    :param wall_clock: seconds since 1970
    """

    def __init__(
        self, database: Database, config: ConfigRegistry, *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._config = config
        self._now = wall_clock
        self._state = _State()
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Read what is stored; called once, at start.

        :raises Unavailable: the database cannot be used
        """
        self._state = await self._database.read(_read)

    @property
    def text(self) -> str:
        """What the model is told; the same text until somebody changes it."""
        return self._text_of(self._state.versions[0] if self._state.versions else None)

    @property
    def is_choice_open(self) -> bool:
        """Whether the owner is to be asked: nobody has chosen, or a week ago the answer was "later"."""
        if self._state.mode is None:
            return not self._is_setting_set
        return self._state.mode == LATER and self._now() - self._state.decided_at >= ASK_AGAIN_AFTER_S

    def describe(self, *, previous: bool = False) -> dict[str, Any]:
        """Return the persona as ``kernel.persona_get`` answers it.

        :param previous: the one before it
        :raises NotFound: there was none before
        """
        versions: tuple[_Version | None, ...] = (*self._state.versions, None)
        if previous and len(versions) < 2:
            raise NotFound(catalogue_text("kernel.persona_no_previous"))
        version = versions[1 if previous else 0]
        content = self._text_of(version)
        return {
            "content": content,
            "origin": self._origin_of(version),
            "changed_at": version.changed_at if version else None,
            "tokens": estimate_tokens(content),
            "choice": self._state.mode,
            "is_choice_open": self.is_choice_open,
        }

    async def set(self, content: str, origin: str) -> bool:
        """Set the persona; it survives a power cut when this returns. What was in force becomes the previous one.

        :param origin: :data:`CONVERSATION`, :data:`COMMAND` or :data:`FILE`
        :returns: whether it is another one than before
        :raises Invalid: it is empty, too long, or no text
        :raises Unavailable: it cannot be stored; nothing changed
        """
        return await self._change(CUSTOM, origin, _checked(content))

    async def import_personal_file(self, content: str) -> bool:
        """Set the persona from ``personal.md``, unless that file is still as it was imported last.

        :returns: whether the persona is another one than before
        :raises Invalid: it is empty, too long, or no text
        :raises Unavailable: it cannot be stored; nothing changed
        """
        clean = _checked(content)
        sha256 = hashlib.sha256(clean.encode()).digest()
        if sha256 == self._state.file_sha256:
            return False
        return await self._change(CUSTOM, PERSONAL_FILE, clean, sha256)

    async def reset(self, origin: str) -> bool:
        """Have the setting, or the built-in persona, count again; what was in force becomes the previous one.

        :returns: whether anything was set before
        :raises Unavailable: it cannot be stored; nothing changed
        """
        return await self._change(DEFAULT, origin, None)

    async def postpone(self) -> bool:
        """Ask again in a week at the earliest.

        :returns: False if there is nothing to postpone, since the owner has chosen
        :raises Unavailable: it cannot be stored; nothing changed
        """
        if self._state.mode in (DEFAULT, CUSTOM):
            return False
        row = (LATER, self._now())
        await self._write(lambda connection: connection.execute(_PUT_CHOICE, row) and None)
        return True

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _change(self, mode: str, origin: str, content: str | None, file_sha256: bytes | None = None) -> bool:
        now = self._now()

        def write(connection: apsw.Connection) -> bool:
            newest = next(iter(connection.execute(_NEWEST)), (None,))[0]
            if content != newest:
                connection.execute(_PUT, (content, origin, now))
                connection.execute(_DROP_OLD)
            connection.execute(_PUT_CHOICE, (mode, now))
            if file_sha256 is not None:
                connection.execute(_PUT_FILE, (file_sha256,))
            return bool(content != newest)

        is_changed = bool(await self._write(write))
        _log.info("persona set", origin=origin, mode=mode, is_changed=is_changed)
        return is_changed

    async def _write(self, work: Callable[[apsw.Connection], Any]) -> Any:
        async def locked() -> Any:
            async with self._changing:
                result = await self._database.write(work)
                await self.load()
                return result

        # Shielded, so that a caller who gives up cannot part what is stored from what is in force.
        return await asyncio.shield(asyncio.create_task(locked()))

    def _text_of(self, version: _Version | None) -> str:
        if version is not None and version.content is not None:
            return version.content
        return self._config.text(SETTING)

    @property
    def _is_setting_set(self) -> bool:
        return bool(self._config.entry(SETTING)["source"] != "default")

    def _origin_of(self, version: _Version | None) -> str:
        if version is not None and version.content is not None:
            return version.origin
        return SETTING_ORIGIN if self._is_setting_set else BUILT_IN_ORIGIN


_NEWEST: Final = "SELECT content FROM persona ORDER BY version DESC LIMIT 1"
_PUT: Final = "INSERT INTO persona (content, origin, changed_at) VALUES (?, ?, ?)"
_DROP_OLD: Final = "DELETE FROM persona WHERE version < (SELECT max(version) - 1 FROM persona)"
_PUT_CHOICE: Final = "UPDATE persona_choice SET mode = ?, decided_at = ?"
_PUT_FILE: Final = "UPDATE persona_choice SET file_sha256 = ?"


def _read(connection: apsw.Connection) -> _State:
    versions = connection.execute("SELECT content, origin, changed_at FROM persona ORDER BY version DESC")
    mode, decided_at, file_sha256 = next(
        iter(connection.execute("SELECT mode, decided_at, file_sha256 FROM persona_choice"))
    )
    return _State(tuple(_Version(*row) for row in versions), mode, decided_at or 0.0, file_sha256)


def _checked(content: str) -> str:
    clean = content.removeprefix("\ufeff").replace("\r\n", "\n").strip()
    size = len(clean.encode("utf-8", "surrogatepass"))
    if not clean:
        raise Invalid(
            catalogue_text("kernel.persona_empty"), field="content", hint=catalogue_text("kernel.persona_empty_hint")
        )
    if size > MOST_BYTES:
        raise Invalid(
            catalogue_text("kernel.persona_too_long", size=size, limit=MOST_BYTES),
            field="content",
            hint=catalogue_text("kernel.persona_too_long_hint"),
        )
    if _CONTROL.search(clean):
        raise Invalid(catalogue_text("kernel.persona_no_text"), field="content")
    return clean
