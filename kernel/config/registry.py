"""The registry of settings: what may be set, what is set, and who hears of a change."""

from __future__ import annotations

import asyncio
import builtins
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import apsw
import structlog

from homeagent_sdk.errors import Invalid, NotFound
from kernel.config.core_settings import CORE_SETTINGS, SEED_VERSION_KEY, SOURCES_PREFIX
from kernel.config.definitions import Definition
from kernel.config.entry import entry_of
from kernel.config.plugin_settings import PREFIX, read_definitions, to_json
from kernel.config.suggestions import nearest
from kernel.config.values import duration_s, normalise
from kernel.database import Database

SEED_VERSION = 1
"""Raised when a first run begins to put other things into a new data directory."""

ChangeCallback = Callable[[list[str]], Awaitable[None]]
"""Called with the keys whose values changed, after they are stored and in force."""

_PUT = """INSERT INTO settings (key, value, changed_at) VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at"""
_DELETE = "DELETE FROM settings WHERE key = ?"
_PUT_DEFINITIONS = """INSERT INTO plugin_settings (plugin, definitions) VALUES (?, ?)
    ON CONFLICT (plugin) DO UPDATE SET definitions = excluded.definitions"""

_log = structlog.get_logger(__name__)


def parse_overrides(texts: list[str]) -> dict[str, str]:
    """Read the arguments of ``--set``, each ``key=value``.

    :raises Invalid: one has no ``=`` or no key
    """
    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise Invalid(
                f"--set {text!r} is not key=value", field="set", hint="for example --set core.log.level=debug"
            )
        overrides[key.strip()] = value
    return overrides


class ConfigRegistry:
    """All settings, read from memory and written through to ``config.db``.

    :param database: opened by the caller; see :func:`kernel.config.schema.config_database`
    :param overrides: key → value for this run of the kernel, which win over what is stored and are not stored
    """

    def __init__(self, database: Database, overrides: Mapping[str, Any] | None = None) -> None:
        self._database = database
        self._given_overrides = dict(overrides or {})
        self._core = {each.key: each for each in CORE_SETTINGS if not each.is_pattern}
        self._patterns = [each for each in CORE_SETTINGS if each.is_pattern]
        self._of_plugins: dict[str, dict[str, Definition]] = {}
        self._stored: dict[str, Any] = {}
        self._overrides: dict[str, Any] = {}
        self._values: dict[str, Any] = {key: definition.default for key, definition in self._core.items()}
        self._callbacks: list[ChangeCallback] = []
        self._changing = asyncio.Lock()
        self.is_first_run = False
        """Whether :meth:`load` found a data directory that was never used before."""

    async def load(self) -> None:
        """Read what is stored, apply the overrides, leave the mark of the first run; called once, at start.

        :raises NotFound: an override names a core setting that does not exist
        :raises Invalid: an override has a value that its setting cannot have
        :raises Unavailable: the database cannot be used
        """
        rows, plugin_rows = await self._database.read(_read_all)
        for plugin, definitions in plugin_rows.items():
            self._of_plugins[plugin] = read_definitions(plugin, json.loads(definitions))
        self.is_first_run = SEED_VERSION_KEY not in rows
        self._stored = {key: json.loads(value) for key, value in rows.items()}
        for key, value in self._given_overrides.items():
            self._override(key, value)
        for definition in self._all_definitions():
            self._put_in_force(definition)
        if self.is_first_run:
            await self._store(SEED_VERSION_KEY, SEED_VERSION)

    # -- reading -----------------------------------------------------------------------------------------------------

    def value(self, key: str) -> Any:
        """Return the value in force, a secret's too; for the kernel itself, not for showing.

        :raises NotFound: there is no such setting
        """
        try:
            return self._values[key]
        except KeyError:
            definition = self._definition(key)
        return definition.default

    def text(self, key: str) -> str:
        """Return a string, text, secret, select or the text of a duration."""
        return str(self.value(key))

    def int(self, key: str) -> builtins.int:
        """Return a whole number."""
        return builtins.int(self.value(key))

    def float(self, key: str) -> builtins.float:
        """Return a number."""
        return builtins.float(self.value(key))

    def bool(self, key: str) -> builtins.bool:
        """Return a truth."""
        value = self.value(key)
        if not isinstance(value, builtins.bool):
            raise TypeError(f"{key} is no bool")
        return value

    def duration(self, key: str) -> builtins.float:
        """Return a duration in seconds."""
        return duration_s(self.value(key))

    def entry(self, key: str) -> dict[str, Any]:
        """Return a setting as it may be shown.

        :raises NotFound: there is no such setting; the hint names similar ones
        """
        definition = self._definition(key)
        source = "override" if key in self._overrides else "stored" if self._is_stored(definition) else "default"
        return entry_of(definition, self.value(key), source)

    def entries(self, prefix: str = "") -> list[dict[str, Any]]:
        """Return all settings whose keys begin with ``prefix``; of a source, all as soon as one of them is set."""
        return [self.entry(each.key) for each in self._all_definitions() if each.key.startswith(prefix)]

    # -- changing ----------------------------------------------------------------------------------------------------

    def on_change(self, callback: ChangeCallback) -> None:
        """Call ``callback`` after every change of a value, before :meth:`set` or :meth:`unset` returns."""
        self._callbacks.append(callback)

    async def set(self, key: str, value: Any) -> dict[str, Any]:
        """Store a value; it survives a power cut when this returns.

        :returns: the setting; if an override hides it for this run, its source says so
        :raises NotFound: there is no such setting; the hint names similar ones
        :raises Invalid: it cannot have this value
        :raises Unavailable: it cannot be stored; nothing changed
        """
        definition = self._definition(key)
        normalised = normalise(definition, value)
        await self._change(definition, lambda: self._store(key, normalised))
        return self.entry(key)

    async def unset(self, key: str) -> dict[str, Any]:
        """Forget what is stored, so that the default is in force again.

        :raises NotFound: there is no such setting
        :raises Unavailable: it cannot be stored; nothing changed
        """
        definition = self._definition(key)
        await self._change(definition, lambda: self._forget(key))
        return self.entry(key)

    async def define_plugin_settings(self, plugin: str, body: Any) -> dict[str, Any]:
        """Replace the definitions of a plugin's settings; they are kept, so that they can be set while it is down.

        :param body: ``definitions`` of ``kernel.define_settings``
        :returns: the plugin's values by key without prefix, secrets too: for the plugin alone
        :raises Invalid: a definition is wrong, or an override has a value that the setting cannot have
        """
        definitions = read_definitions(plugin, body)
        overrides = {
            key: normalise(definitions[key], value)
            for key, value in self._given_overrides.items()
            if key in definitions
        }
        async with self._changing:
            if self._of_plugins.get(plugin) != definitions:
                text = to_json(plugin, definitions.values())
                await self._database.write(
                    lambda connection: connection.execute(_PUT_DEFINITIONS, (plugin, text)) and None
                )
            self._of_plugins[plugin] = definitions
            self._overrides |= overrides
            for definition in definitions.values():
                self._put_in_force(definition)
        return self.plugin_values(plugin)

    def plugin_values(self, plugin: str) -> dict[str, Any]:
        """Return the values of a plugin's settings by key without prefix, secrets too: for the plugin alone."""
        prefix = f"{PREFIX}{plugin}."
        return {key.removeprefix(prefix): self._values[key] for key in self._of_plugins.get(plugin, ())}

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _change(self, definition: Definition, store: Callable[[], Awaitable[None]]) -> None:
        async def change() -> builtins.bool:
            async with self._changing:
                await store()
                before = self._values.get(definition.key, definition.default)
                self._put_in_force(definition)
                return builtins.bool(self._values[definition.key] != before)

        # Shielded, so that a caller who gives up cannot part what is stored from what is in force.
        if await asyncio.shield(asyncio.create_task(change())):
            await self._announce([definition.key])

    async def _announce(self, keys: list[str]) -> None:
        for callback in self._callbacks:
            try:
                await callback(keys)
            except Exception:
                _log.exception("config_callback_failed", keys=keys)

    async def _store(self, key: str, value: Any) -> None:
        row = (key, json.dumps(value, ensure_ascii=False), time.time())
        await self._database.write(lambda connection: connection.execute(_PUT, row) and None)
        self._stored[key] = value

    async def _forget(self, key: str) -> None:
        await self._database.write(lambda connection: connection.execute(_DELETE, (key,)) and None)
        self._stored.pop(key, None)

    def _put_in_force(self, definition: Definition) -> None:
        key = definition.key
        if key in self._overrides:
            self._values[key] = self._overrides[key]
        elif self._is_stored(definition):
            self._values[key] = normalise(definition, self._stored[key])
        else:
            self._values[key] = definition.default

    def _is_stored(self, definition: Definition) -> builtins.bool:
        """Say whether a stored value can be used; an upgrade may have changed the type of its setting."""
        if definition.key not in self._stored:
            return False
        try:
            normalise(definition, self._stored[definition.key])
        except Invalid as error:
            _log.warning("stored_setting_ignored", key=definition.key, reason=str(error))
            return False
        return True

    def _override(self, key: str, value: Any) -> None:
        if key.startswith(PREFIX) and not any(key in definitions for definitions in self._of_plugins.values()):
            return  # looked at again when its plugin has defined it
        self._overrides[key] = normalise(self._definition(key), value)

    def _all_definitions(self) -> Iterator[Definition]:
        yield from self._core.values()
        for name in self._source_names():
            for pattern in self._patterns:
                yield pattern.named(name)
        for plugin in sorted(self._of_plugins):
            yield from self._of_plugins[plugin].values()

    def _source_names(self) -> list[str]:
        keys = [*self._stored, *self._overrides]
        names = (pattern.name_in(key) for key in keys if key.startswith(SOURCES_PREFIX) for pattern in self._patterns)
        return sorted({name for name in names if name is not None})

    def _definition(self, key: str) -> Definition:
        found = self._core.get(key) or self._of_plugins.get(_plugin_of(key), {}).get(key)
        if found is not None:
            return found
        for pattern in self._patterns:
            name = pattern.name_in(key)
            if name is not None:
                return pattern.named(name)
        raise self._unknown(key)

    def _unknown(self, key: str) -> Invalid | NotFound:
        plugin = _plugin_of(key)
        if key.startswith(SOURCES_PREFIX) and key.endswith(".api_key"):
            return Invalid(
                f"{key} is not kept by the kernel",
                field=key,
                hint=f"`homeagent config set {key}` reads the key from its input and gives it to the provider service",
            )
        if plugin and plugin not in self._of_plugins:
            hint = f"no plugin {plugin} has ever been started here; its settings are known once it was"
            return NotFound(f"there is no setting {key}", field=key, hint=hint)
        similar = nearest(key, self._known_keys(key))
        hint = f"did you mean {' or '.join(similar)}?" if similar else "`homeagent config list` shows all settings"
        return NotFound(f"there is no setting {key}", field=key, hint=hint)

    def _known_keys(self, asked: str) -> list[str]:
        keys = [definition.key for definition in self._all_definitions()]
        name = asked.removeprefix(SOURCES_PREFIX).partition(".")[0]
        if asked.startswith(SOURCES_PREFIX) and name:
            keys += [pattern.named(name).key for pattern in self._patterns]
        return keys


def _plugin_of(key: str) -> str:
    return key.removeprefix(PREFIX).partition(".")[0] if key.startswith(PREFIX) else ""


def _read_all(connection: apsw.Connection) -> tuple[dict[str, str], dict[str, str]]:
    settings = dict(connection.execute("SELECT key, value FROM settings"))
    definitions = dict(connection.execute("SELECT plugin, definitions FROM plugin_settings"))
    return settings, definitions
