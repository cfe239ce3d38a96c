"""A setting as it is shown, in the shape in which ``kernel.config_get`` answers it."""

from __future__ import annotations

from typing import Any

from kernel.config.definitions import Definition


def entry_of(definition: Definition, value: Any, source: str) -> dict[str, Any]:
    """Return the entry of a setting.

    :param value: what is in force; of a secret nothing is shown but ``is_set``
    :param source: where the value comes from: default, stored, or override (given at start, not stored)
    """
    is_secret = definition.is_secret
    entry: dict[str, Any] = {
        "key": definition.key,
        "value": None if is_secret else value,
        "default": None if is_secret else definition.default,
        "type": definition.type,
        "description": dict(definition.description),
        "secret": is_secret,
        "source": source,
        "is_set": source != "default",
    }
    if definition.options:
        entry["options"] = list(definition.options)
    if definition.minimum is not None:
        entry["minimum"] = definition.minimum
    if definition.maximum is not None:
        entry["maximum"] = definition.maximum
    return entry
