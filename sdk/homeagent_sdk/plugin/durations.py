"""Durations as people write them: ``10m``, ``1h30m``, ``2d``."""

from __future__ import annotations

import math
import re

from homeagent_sdk.errors import Invalid

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|m|s)")
_PLAIN = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(value: str | int | float, *, field: str | None = None) -> float:
    """Return a duration in seconds.

    :param value: text such as ``90s``, ``10m``, ``1h30m``, ``2d``; a number, or text of one, is taken as seconds
    :param field: the name to give in the error
    :raises Invalid: it is no duration, or negative
    """
    hint = "write it as 90s, 10m, 1h30m or 2d"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Invalid(f"{value!r} is not a duration", field=field, hint=hint)
    if isinstance(value, str):
        text = value.strip().lower()
        if _PLAIN.fullmatch(text):
            return float(text)
        if not text or _PART.sub("", text).strip():
            raise Invalid(f"{value!r} is not a duration", field=field, hint=hint)
        return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if not math.isfinite(value) or value < 0:
        raise Invalid(f"{value!r} is not a duration", field=field, hint=hint)
    return float(value)


def format_duration(seconds: float) -> str:
    """Return a duration as people write it, to the second: ``1h30m``, ``45s``."""
    left = max(0, round(seconds))
    parts = []
    for unit, size in _SECONDS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
