"""The types of settings: how a value that someone gave becomes the one that is kept."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.durations import format_duration, parse_duration
from kernel.config.definitions import Definition

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_LONGEST_STRING = 4_096
_LONGEST_TEXT = 65_536
_WEEKS = re.compile(r"(\d+(?:\.\d+)?)\s*w", re.IGNORECASE)


def normalise(definition: Definition, value: Any) -> Any:
    """Return ``value`` as it is kept: of the definition's type, within its bounds.

    Text is read where a number, a duration or a truth is wanted, since a command line has nothing else.

    :returns: str, int, float or bool; a duration as text in its shortest form, such as ``1h30m``
    :raises Invalid: it is not such a value; the hint says what is
    """
    normalised = _READERS[definition.type](definition, value)
    _check_bounds(definition, normalised)
    return normalised


def duration_s(value: Any, field: str | None = None) -> float:
    """Return a duration such as ``30m``, ``1h30m``, ``2d`` or ``1w`` in seconds; a bare number is seconds."""
    if isinstance(value, str):
        value = _WEEKS.sub(lambda weeks: f"{float(weeks[1]) * 7:f}d", value)
    return parse_duration(value, field=field)


def _wrong(definition: Definition, value: Any, expected: str) -> Invalid:
    shown = "the value" if definition.is_secret else repr(value)[:80]
    return Invalid(f"{definition.key} cannot be {shown}", field=definition.key, hint=f"it must be {expected}")


def _string(definition: Definition, value: Any) -> str:
    text = _text_of(definition, value, _LONGEST_STRING).strip()
    if "\n" in text or "\r" in text:
        raise _wrong(definition, value, "one line")
    if definition.pattern and text and not re.fullmatch(definition.pattern, text):
        raise _wrong(definition, value, definition.expected)
    return text


def _text(definition: Definition, value: Any) -> str:
    return _text_of(definition, value, _LONGEST_TEXT)


def _text_of(definition: Definition, value: Any, longest: int) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(definition, value, "a text")
    text = str(value)
    if len(text) > longest or "\0" in text:
        raise _wrong(definition, text, f"a text of at most {longest} characters without NUL")
    return text


def _int(definition: Definition, value: Any) -> int:
    number = _float(definition, value)
    if not number.is_integer():
        raise _wrong(definition, value, "a whole number")
    return int(value) if isinstance(value, int) else int(number)


def _float(definition: Definition, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _wrong(definition, value, "a number")
    return number


def _bool(definition: Definition, value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _wrong(definition, value, "true or false")


def _duration(definition: Definition, value: Any) -> str:
    try:
        seconds = duration_s(value, definition.key)
    except Invalid as error:
        raise _wrong(definition, value, "a duration such as 90s, 30m, 1h30m, 2d or 1w") from error
    return format_duration(seconds) if seconds.is_integer() else f"{seconds:g}s"


def _select(definition: Definition, value: Any) -> str:
    if value not in definition.options:
        raise _wrong(definition, value, f"one of {', '.join(definition.options)}")
    return str(value)


_READERS: dict[str, Callable[[Definition, Any], Any]] = {
    "string": _string,
    "text": _text,
    "secret": _string,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "duration": _duration,
    "select": _select,
}
TYPES = frozenset(_READERS)


def _check_bounds(definition: Definition, value: Any) -> None:
    low, high = definition.minimum, definition.maximum
    if low is None and high is None:
        return
    number = duration_s(value) if definition.type == "duration" else value
    if (low is not None and number < low) or (high is not None and number > high):
        raise _wrong(definition, value, _bounds_in_words(definition))


def _bounds_in_words(definition: Definition) -> str:
    def shown(bound: float) -> str:
        return format_duration(bound) if definition.type == "duration" else f"{bound:g}"

    low, high = definition.minimum, definition.maximum
    if low is not None and high is not None:
        return f"between {shown(low)} and {shown(high)}"
    return f"at least {shown(low)}" if low is not None else f"at most {shown(high or 0)}"
