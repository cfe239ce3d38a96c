"""Checks arguments against a tool's JSON schema before the tool runs, and brings them into the types that it asks for.

Lenient where models are sloppy and the meaning is plain (``"20"`` for 20, ``"5m"`` for a number of seconds); strict
where a guess could do harm (arrays, objects, unknown names, half numbers). Of JSON schema it knows type, properties,
required, additionalProperties, items, enum, const, minimum, maximum, anyOf and oneOf, and lets everything else pass.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from kernel.tools.arguments import ArgumentProblem, ArgumentsRefused

Schema = Mapping[str, Any]

_MOST_PROBLEMS = 8
_SHOWN = 80
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WITH_UNIT = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS = (
    ("ms", re.compile(r"_ms$|millisecond|毫秒", re.IGNORECASE)),
    ("s", re.compile(r"_s$|_secs?$|second|(?<!毫)秒", re.IGNORECASE)),
    ("m", re.compile(r"_mins?$|minute|分钟", re.IGNORECASE)),
    ("h", re.compile(r"_h$|hour|小时", re.IGNORECASE)),
    ("d", re.compile(r"_days?$|\bdays?\b|天", re.IGNORECASE)),
)


def check_arguments(schema: Schema, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the types that the schema asks for; what is passed in stays as it is.

    :raises ArgumentsRefused: with all problems found, the first eight at most
    """
    check = _Check()
    checked = check.object({"type": "object", **schema}, arguments, "")
    if check.problems:
        raise ArgumentsRefused(check.problems[:_MOST_PROBLEMS])
    assert isinstance(checked, dict)
    return checked


class _Check:
    """Walks through a value beside its schema and collects what is wrong."""

    def __init__(self) -> None:
        self.problems: list[ArgumentProblem] = []

    def value(self, schema: Schema, value: Any, path: str) -> Any:
        if value is None:
            return None
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list):
                return self._any_of(schema[union], value, path)
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
        if isinstance(schema.get("enum"), list):
            return self._enum(schema["enum"], value, path)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return self._any_of([{**schema, "type": kind} for kind in kinds if kind != "null"], value, path)
        check = _CHECKS.get(str(kinds))
        return check(self, schema, value, path) if check is not None else value

    def object(self, schema: Schema, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return self._wrong_type(value, path, "a JSON object, not a text of one")
        properties: Mapping[str, Schema] = schema.get("properties") or {}
        dotted = f"{path}." if path else ""
        self._required(schema, properties, value, dotted)
        rest = schema.get("additionalProperties", not properties and path != "")
        checked: dict[str, Any] = {}
        for name, item in value.items():
            if name in properties:
                checked[name] = self.value(properties[name], item, f"{dotted}{name}")
            elif isinstance(rest, Mapping):
                checked[name] = self.value(rest, item, f"{dotted}{name}")
            elif rest:
                checked[name] = item
            else:
                self._unknown(name, properties, dotted)
        return checked

    def array(self, schema: Schema, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            return self._wrong_type(value, path, "a JSON array, not a text of one")
        items = schema.get("items")
        if not isinstance(items, Mapping):
            return list(value)
        return [self.value(items, item, f"{path}[{index}]") for index, item in enumerate(value)]

    def string(self, schema: Schema, value: Any, path: str) -> Any:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        return self._wrong_type(value, path, "a text")

    def boolean(self, schema: Schema, value: Any, path: str) -> Any:
        word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        return self._wrong_type(value, path, "true or false")

    def number(self, schema: Schema, value: Any, path: str) -> Any:
        number = _number(schema, value, path)
        if number is None:
            return self._wrong_type(value, path, "a number without a unit")
        return self._within_bounds(schema, number, path)

    def integer(self, schema: Schema, value: Any, path: str) -> Any:
        number = _number(schema, value, path)
        if number is None or not float(number).is_integer():
            return self._wrong_type(value, path, "a whole number without a unit")
        return self._within_bounds(schema, int(number), path)

    def _required(
        self, schema: Schema, properties: Mapping[str, Schema], value: Mapping[str, Any], dotted: str
    ) -> None:
        for name in schema.get("required") or ():
            member = properties.get(name, {})
            given = value.get(name)
            is_blank = isinstance(given, str) and not given.strip() and member.get("minLength") != 0
            if name in value and not is_blank:
                continue
            what = f": {member['description']}" if member.get("description") else ""
            self._add(
                f"{dotted}{name}",
                "required",
                f"{dotted}{name} is {'blank' if name in value else 'missing'}",
                f"give {name}{what}; do not repeat the call without it",
            )

    def _within_bounds(self, schema: Schema, number: float, path: str) -> Any:
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and number < low) or (high is not None and number > high):
            words = f"from {low if low is not None else 'any'} to {high if high is not None else 'any'}"
            self._add(path, "value", f"{path} is {number}", f"give a number {words}")
        return number

    def _enum(self, options: list[Any], value: Any, path: str) -> Any:
        for option in options:
            if type(option) is type(value) and option == value:
                return option
        for option in options:
            if not isinstance(value, list | dict) and str(option).lower() == str(value).strip().lower():
                return option
        self._add(path, "value", f"{path} is {_shown(value)}", f"give one of {', '.join(map(repr, options))}")
        return value

    def _any_of(self, schemas: list[Schema], value: Any, path: str) -> Any:
        closest: list[ArgumentProblem] | None = None
        for schema in schemas:
            attempt = _Check()
            checked = attempt.value(schema, value, path)
            if not attempt.problems:
                return checked
            if closest is None or len(attempt.problems) < len(closest):
                closest = attempt.problems
        self.problems += closest or []
        return value

    def _unknown(self, name: str, properties: Mapping[str, Schema], dotted: str) -> None:
        similar = difflib.get_close_matches(name, list(properties), n=1)
        known = ", ".join(properties) or "none"
        hint = f"did you mean {similar[0]}? It takes: {known}" if similar else f"leave it out; it takes: {known}"
        self._add(f"{dotted}{name}", "unknown", f"{dotted}{name} is no argument of this tool", hint)

    def _wrong_type(self, value: Any, path: str, expected: str) -> Any:
        self._add(path or None, "type", f"{path or 'the arguments'} is {_shown(value)}", f"give {expected}")
        return value

    def _add(self, field: str | None, reason: str, detail: str, hint: str) -> None:
        self.problems.append(ArgumentProblem(field, reason, detail, hint))


_CHECKS: dict[str, Callable[[_Check, Schema, Any, str], Any]] = {
    "object": _Check.object,
    "array": _Check.array,
    "string": _Check.string,
    "boolean": _Check.boolean,
    "number": _Check.number,
    "integer": _Check.integer,
}


def _number(schema: Schema, value: Any, path: str) -> float | None:
    """Return a finite number, also from text; one with a unit of time in the unit that the argument is in."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        with_unit = _WITH_UNIT.fullmatch(value.strip().lower())
        if with_unit:
            return _in_unit(schema, path, float(with_unit[1]) * _SECONDS[with_unit[2]])
        if re.fullmatch(r"[+-]?\d+", value.strip()):
            return int(value)
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _in_unit(schema: Schema, path: str, seconds: float) -> float | None:
    """Convert seconds to the unit that name or description of the argument speak of; None: they do not say."""
    for text in (path, str(schema.get("description") or "")):
        for unit, pattern in _UNITS:
            if pattern.search(text):
                return round(seconds / _SECONDS[unit], 6)
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
