"""``plugin.json``: what a plugin says of itself, read strictly, since a misspelt key would be a silent no."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.durations import parse_duration
from homeagent_sdk.plugin.messages import STAGES

RESERVED_NAMES = frozenset(
    {"kernel", "memory", "provider", "host", "hub", "gateway", "ring", "core", "plugin", "unbound"}
)
"""Names of the bus and of the configuration; no plugin may bear one, nor one that begins with ``operator``."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SETTING_KEY = re.compile(r"[a-z][a-z0-9_.]{0,63}")
_LARGEST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One setting, kept by the kernel as ``plugin.<name>.<key>``."""

    key: str
    type: str
    """string, int, float, bool, duration, select, text (several lines) or secret."""
    default: Any
    description: dict[str, str]
    """Language (en, zh) → text."""
    options: tuple[str, ...] = ()
    """The values that a ``select`` offers."""

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for ``kernel.define_settings``."""
        body: dict[str, Any] = {
            "key": self.key,
            "type": self.type,
            "default": self.default,
            "description": self.description,
        }
        return {**body, "options": list(self.options)} if self.options else body


@dataclass(frozen=True, slots=True)
class StageGrant:
    """A stage that the plugin may take part in, and the fields that it may change there."""

    stage: str
    changes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``plugin.json`` says."""

    name: str
    version: str
    kind: str
    entry: str
    """Path of the file to load, below the plugin's folder."""
    description: dict[str, str]
    settings: tuple[SettingDefinition, ...] = ()
    channels: tuple[str, ...] = ()
    stages: tuple[StageGrant, ...] = ()
    topics: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def read_manifest(folder: Path) -> Manifest:
    """Read ``plugin.json`` of a plugin's folder, and check that the entry is there.

    :raises Invalid: it is missing, no JSON, or says something wrong; ``field`` and ``hint`` say what
    """
    path = folder / "plugin.json"
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise Invalid(f"{path} is larger than {_LARGEST_BYTES} bytes")
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Invalid(f"{path} is missing", hint="every plugin has a plugin.json; see docs/plugins.md") from None
    except (OSError, ValueError) as error:
        raise Invalid(f"{path} cannot be read: {error}", hint="it must be JSON in UTF-8") from error
    manifest = parse_manifest(body)
    if not (folder / manifest.entry).is_file():
        raise Invalid(f"{folder / manifest.entry} is missing", field="entry", hint="name the file with the plugin")
    return manifest


def parse_manifest(body: Any) -> Manifest:
    """Turn the content of a ``plugin.json`` into a :class:`Manifest`.

    :raises Invalid: a key is unknown, missing or of the wrong type; ``field`` names it
    """
    members = _members(body, "", _MANIFEST_REQUIRED, _MANIFEST_OPTIONAL)
    return Manifest(**members)


def _wrong(field: str, expected: str, value: Any) -> Invalid:
    return Invalid(f"{field} in plugin.json must be {expected}", field=field, hint=f"it is {value!r:.100}")


Reader = Callable[[Any, str], Any]


def _members(body: Any, prefix: str, required: dict[str, Reader], optional: dict[str, Reader]) -> dict[str, Any]:
    """Read an object's members, each by its reader; refuse what is unknown or missing."""
    if not isinstance(body, dict):
        raise _wrong(prefix or "the content", "an object", body)
    dotted = f"{prefix}." if prefix else ""
    readers = required | optional
    for key in body:
        if key not in readers:
            raise Invalid(
                f"{dotted}{key} in plugin.json is not known",
                field=f"{dotted}{key}",
                hint=f"known: {', '.join(readers)}",
            )
    for key in required:
        if key not in body:
            raise Invalid(f"{dotted}{key} in plugin.json is missing", field=f"{dotted}{key}", hint=f"add {key!r}")
    return {key: readers[key](value, f"{dotted}{key}") for key, value in body.items()}


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(field, "a text", value)
    return value


def _name(value: Any, field: str) -> str:
    name = _text(value, field)
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} cannot be the name of a plugin", field=field, hint="use a-z, 0-9 and _, at most 32")
    if name in RESERVED_NAMES or name.startswith("operator"):
        raise Invalid(f"the name {name!r} belongs to the agent itself", field=field, hint="choose another name")
    return name


def _kind(value: Any, field: str) -> str:
    if value != "python":
        raise _wrong(field, '"python"', value)
    return "python"


def _entry(value: Any, field: str) -> str:
    path = PurePosixPath(_text(value, field))
    if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
        raise Invalid(f"entry {value!r} must be a .py file below the plugin's folder", field=field, hint="e.g. main.py")
    return str(path)


def _languages(value: Any, field: str) -> dict[str, str]:
    return {key: str(text) for key, text in _members(value, field, {"en": _text}, {"zh": _text}).items()}


def _texts(value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _wrong(field, "a list of texts", value)
    return tuple(_text(item, f"{field}[{index}]") for index, item in enumerate(value))


def _setting_key(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _SETTING_KEY.fullmatch(value):
        raise Invalid(f"{value!r} cannot be the key of a setting", field=field, hint="use a-z, 0-9, _ and .")
    return value


def _setting_type(value: Any, field: str) -> str:
    if value not in _DEFAULTS:
        raise _wrong(field, f"one of {', '.join(_DEFAULTS)}", value)
    return str(value)


def _setting(value: Any, field: str) -> SettingDefinition:
    required: dict[str, Reader] = {
        "key": _setting_key,
        "type": _setting_type,
        "default": lambda default, _: default,
        "description": _languages,
    }
    setting = SettingDefinition(**_members(value, field, required, {"options": _texts}))
    if (setting.type == "select") != bool(setting.options):
        raise Invalid(f"{field}.options: a select needs options, and nothing else may have them", field=field)
    if not _DEFAULTS[setting.type](setting):
        raise _wrong(f"{field}.default", f"a value of type {setting.type}", setting.default)
    return setting


def _settings(value: Any, field: str) -> tuple[SettingDefinition, ...]:
    if not isinstance(value, list):
        raise _wrong(field, "a list of objects", value)
    settings = tuple(_setting(item, f"{field}[{index}]") for index, item in enumerate(value))
    keys = [setting.key for setting in settings]
    for key in keys:
        if keys.count(key) > 1:
            raise Invalid(f"the setting {key} in plugin.json is defined twice", field=field)
    return settings


def _stage(value: Any, field: str) -> StageGrant:
    if isinstance(value, str):
        value = {"stage": value}
    members = _members(value, field, {"stage": _text}, {"changes": _texts})
    stage, changes = members["stage"], frozenset(members.get("changes", ()))
    if stage not in STAGES:
        raise _wrong(field, f"one of {', '.join(STAGES)}", stage)
    if changes - STAGES[stage]:
        allowed = ", ".join(sorted(STAGES[stage])) or "nothing"
        raise Invalid(f"{field}.changes: {stage} may change {allowed}", field=f"{field}.changes")
    return StageGrant(stage, changes)


def _stages(value: Any, field: str) -> tuple[StageGrant, ...]:
    if not isinstance(value, list):
        raise _wrong(field, "a list of stages", value)
    return tuple(_stage(item, f"{field}[{index}]") for index, item in enumerate(value))


def _is_duration(setting: SettingDefinition) -> bool:
    try:
        parse_duration(setting.default)
    except Invalid:
        return False
    return True


def _is_text(setting: SettingDefinition) -> bool:
    return isinstance(setting.default, str)


_DEFAULTS: dict[str, Callable[[SettingDefinition], bool]] = {
    "string": _is_text,
    "text": _is_text,
    "int": lambda setting: isinstance(setting.default, int) and not isinstance(setting.default, bool),
    "float": lambda setting: isinstance(setting.default, int | float) and not isinstance(setting.default, bool),
    "bool": lambda setting: isinstance(setting.default, bool),
    "duration": _is_duration,
    "select": lambda setting: setting.default in setting.options,
    "secret": lambda setting: setting.default is None or setting.default == "",
}

_MANIFEST_REQUIRED: dict[str, Reader] = {
    "name": _name,
    "version": _text,
    "kind": _kind,
    "entry": _entry,
    "description": _languages,
}
_MANIFEST_OPTIONAL: dict[str, Reader] = {
    "settings": _settings,
    "channels": _texts,
    "stages": _stages,
    "topics": _texts,
    "capabilities": _texts,
}
