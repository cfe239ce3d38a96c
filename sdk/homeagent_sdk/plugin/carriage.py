"""What may leave a plugin: values that JSON can say, checked before the bus refuses them without saying where."""

from __future__ import annotations

import dataclasses
from typing import Any

from homeagent_sdk.errors import Invalid

_DEEPEST = 64
_INTEGERS = range(-(2**63), 2**64)


def carried(value: Any, where: str) -> Any:
    """Return ``value`` as plain JSON types; dataclasses and tuples are taken apart.

    :param where: what it is, for the error
    :raises Invalid: something in it cannot be carried; ``field`` says where it is
    """
    return _plain(value, "", where, 0)


def _plain(value: Any, path: str, where: str, depth: int) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value in _INTEGERS else _refuse(path, where, "an integer of more than 64 bits")
    if isinstance(value, str):
        return value if _is_unicode(value) else _refuse(path, where, "text that is not valid Unicode")
    if depth >= _DEEPEST:
        return _refuse(path, where, f"nested deeper than {_DEEPEST} levels")
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]", where, depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, path, where): _plain(item, f"{path}.{key}", where, depth + 1) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [member.name for member in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), f"{path}.{name}", where, depth + 1) for name in names}
    return _refuse(path, where, f"a {type(value).__name__}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(key: Any, path: str, where: str) -> str:
    if not isinstance(key, str):
        _refuse(path, where, f"a {type(key).__name__} as a key")
    return str(key)


def _refuse(path: str, where: str, what: str) -> Any:
    at = f" at {path.lstrip('.')}" if path else ""
    raise Invalid(
        f"{where} returned {what}{at}, which cannot be carried",
        field=path.lstrip(".") or None,
        hint="return None, bool, int, float, str, list, dict with text keys, or a dataclass of these",
        detail={"reason": "result"},
    )
