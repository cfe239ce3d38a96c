"""Reads the settings that a plugin defines when it starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from homeagent_sdk.errors import Invalid
from kernel.config.definitions import Definition
from kernel.config.values import TYPES, normalise

PREFIX = "plugin."
_MOST_SETTINGS = 200
_LONGEST_DESCRIPTION = 2_000
_PLUGIN = re.compile(r"[a-z][a-z0-9_]{0,31}")
_KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
_REQUIRED = frozenset({"key", "type", "default", "description"})
_KNOWN = _REQUIRED | {"options", "minimum", "maximum"}


def read_definitions(plugin: str, body: Any) -> dict[str, Definition]:
    """Read ``definitions`` of ``kernel.define_settings``.

    :returns: whole key, ``plugin.<plugin>.<key>`` → definition, in the order given
    :raises Invalid: something is missing, unknown or wrong; ``field`` says where
    """
    if not _PLUGIN.fullmatch(plugin):
        raise Invalid(f"{plugin!r} cannot be the name of a plugin", field="plugin", hint="use a-z, 0-9 and _")
    if not isinstance(body, list) or len(body) > _MOST_SETTINGS:
        raise Invalid(f"definitions of {plugin} must be a list of at most {_MOST_SETTINGS}", field="definitions")
    definitions = [_definition(plugin, each, f"definitions[{index}]") for index, each in enumerate(body)]
    by_key = {definition.key: definition for definition in definitions}
    if len(by_key) < len(definitions):
        raise Invalid(f"{plugin} defines a setting twice", field="definitions", hint="give each its own key")
    return by_key


def to_json(plugin: str, definitions: Iterable[Definition]) -> str:
    """Return definitions as they are kept, so that a plugin's settings can be changed while it is down."""
    prefix = f"{PREFIX}{plugin}."
    bodies = []
    for definition in definitions:
        body: dict[str, Any] = {name: getattr(definition, name) for name in _KNOWN}
        body |= {"key": definition.key.removeprefix(prefix), "description": dict(definition.description)}
        bodies.append({name: value for name, value in body.items() if value is not None})
    return json.dumps(bodies, ensure_ascii=False)


def _definition(plugin: str, body: Any, where: str) -> Definition:
    if not isinstance(body, dict):
        raise Invalid(f"{where} of {plugin} must be an object", field=where)
    missing, unknown = sorted(_REQUIRED - body.keys()), sorted(map(str, body.keys() - _KNOWN))
    if missing or unknown:
        wrong = f"lacks {', '.join(missing)}" if missing else f"has the unknown {', '.join(unknown)}"
        raise Invalid(f"{where} of {plugin} {wrong}", field=where, hint=f"known: {', '.join(sorted(_KNOWN))}")
    if not isinstance(body["key"], str) or len(body["key"]) > 64 or not _KEY.fullmatch(body["key"]):
        raise Invalid(
            f"{body['key']!r} cannot be the key of a setting", field=f"{where}.key", hint="use a-z, 0-9, _ and ."
        )
    if body["type"] not in TYPES:
        raise Invalid(
            f"there is no type {body['type']!r}", field=f"{where}.type", hint=f"use {', '.join(sorted(TYPES))}"
        )
    definition = Definition(
        key=f"{PREFIX}{plugin}.{body['key']}",
        type=body["type"],
        default=body["default"],
        description=_description(body["description"], f"{where}.description"),
        options=_options(body, where),
        minimum=_bound(body, "minimum", where),
        maximum=_bound(body, "maximum", where),
    )
    if definition.is_secret:
        return replace(definition, default="")
    return replace(definition, default=normalise(definition, definition.default))


def _description(body: Any, where: str) -> dict[str, str]:
    is_right = isinstance(body, dict) and all(
        isinstance(text, str) and len(text) <= _LONGEST_DESCRIPTION for text in body.values()
    )
    if not is_right or not body.get("en"):
        raise Invalid(f"{where} must have a text for en, and may have one for zh", field=where)
    return {language: body[language] for language in ("en", "zh") if body.get(language)}


def _options(body: dict[str, Any], where: str) -> tuple[str, ...]:
    options = body.get("options") or []
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        raise Invalid(f"{where}.options must be a list of texts", field=f"{where}.options")
    if (body["type"] == "select") != bool(options):
        raise Invalid(f"{where}: a select needs options, and nothing else has them", field=f"{where}.options")
    return tuple(options)


def _bound(body: dict[str, Any], name: str, where: str) -> float | None:
    bound = body.get(name)
    if bound is None:
        return None
    if (
        isinstance(bound, bool)
        or not isinstance(bound, int | float)
        or body["type"] not in ("int", "float", "duration")
    ):
        raise Invalid(f"{where}.{name} must be a number, for a number or a duration", field=f"{where}.{name}")
    return bound
