"""Reads fields of a request's body, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homeagent_sdk.errors import Invalid


def as_map(body: Any) -> Mapping[str, Any]:
    """Return the body as a map.

    :raises Invalid: it is none
    """
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise Invalid("the body must be a map")
    return body


def text_field(body: Mapping[str, Any], name: str, *, default: str | None = None, limit: int = 512) -> str:
    """Return a text field.

    :param default: used where the field is missing or None; None: the field is required
    :param limit: the most characters it may have
    :raises Invalid: it is missing, no text, or too long
    """
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise Invalid(f"{name} must be a text", field=name)
    if not value and default is None:
        raise Invalid(f"{name} must not be empty", field=name)
    if len(value) > limit:
        raise Invalid(f"{name} has {len(value)} characters; at most {limit} are taken", field=name)
    return value


def limit_field(body: Mapping[str, Any], name: str = "limit", *, default: int = 50, most: int = 1000) -> int:
    """Return a count between 1 and ``most``.

    :raises Invalid: it is none
    """
    value = body.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise Invalid(f"{name} must be a whole number from 1 to {most}", field=name)
    return value


def flag_field(body: Mapping[str, Any], name: str) -> bool:
    """Return a truth; a missing one is False.

    :raises Invalid: it is none
    """
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Invalid(f"{name} must be true or false", field=name)
    return bool(value)
