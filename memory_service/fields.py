"""Reads a mapping that came from outside, field by field; every complaint names the field by its full path."""

from __future__ import annotations

from typing import Any, TypeVar

from homeagent_sdk.errors import Invalid

MAX_NAME_CHARACTERS = 1_000
MAX_NAMES = 1_000

T = TypeVar("T")


class Fields:
    """One mapping of a request.

    :param body: what was sent; anything but a mapping is refused
    :param path: where in the request it stands, empty for the request itself
    :raises Invalid: also from every method, with ``field``
    """

    def __init__(self, body: Any, path: str = "") -> None:
        if not isinstance(body, dict):
            raise Invalid(f"{path or 'the body'} must be a mapping, not {type(body).__name__}", field=path or None)
        self._body = body
        self._path = path

    def wrong(self, key: str, why: str) -> Invalid:
        """Return the complaint about a field."""
        field = f"{self._path}.{key}" if self._path else key
        return Invalid(f"{field} {why}", field=field)

    def value(self, key: str) -> Any:
        """Return a field as it is, None if it is missing."""
        return self._body.get(key)

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._body.get(key) is not None

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a field of a type; ``default`` stands in for one that is missing."""
        value = self._body.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"must be {_NAMES.get(kind, kind.__name__)}, not {type(value).__name__}")
        return value

    def inside(self, key: str) -> Fields:
        """Return the mapping in a field."""
        return Fields(self._body.get(key), f"{self._path}.{key}" if self._path else key)

    def each(self, key: str) -> list[Fields]:
        """Return the mappings in a list; a missing one is empty."""
        path = f"{self._path}.{key}" if self._path else key
        return [Fields(item, f"{path}.{index}") for index, item in enumerate(self._some(key))]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        return self._unicode(key, self.take(key, str, default))

    def name(self, key: str) -> str:
        """Return a text that is not empty and not long."""
        return self._short(key, self.text(key))

    def names(self, key: str) -> tuple[str, ...]:
        """Return the names in a list, each once; a missing one is empty."""
        names: dict[str, None] = {}
        for item in self._some(key):
            if not isinstance(item, str):
                raise self.wrong(key, f"must hold texts only, not {type(item).__name__}")
            names[self._short(key, self._unicode(key, item))] = None
        return tuple(names)

    def number(self, key: str, default: int, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        value = self.take(key, int, default)
        if not least <= value <= most:
            raise self.wrong(key, f"must be from {least} to {most}")
        return value

    def real(self, key: str) -> float:
        """Return a number, whole or not."""
        return float(self.take(key, int if type(self.value(key)) is int else float))

    def _some(self, key: str) -> list[Any]:
        items: list[Any] = self.take(key, list, [])
        if len(items) > MAX_NAMES:
            raise self.wrong(key, f"has {len(items)} entries, at most {MAX_NAMES} are allowed")
        return items

    def _short(self, key: str, value: str) -> str:
        if not 0 < len(value) <= MAX_NAME_CHARACTERS:
            raise self.wrong(key, f"must have 1 to {MAX_NAME_CHARACTERS} characters")
        return value

    def _unicode(self, key: str, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(key, "is not valid Unicode") from None
        return value


_NAMES: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}
