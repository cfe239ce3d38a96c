"""Times as people write them, and back."""

from __future__ import annotations

from datetime import UTC, datetime

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid

_LATEST = 253_402_300_799.0
"""The end of the year 9999, seconds since 1970."""


def seconds_of(written: str) -> float:
    """Return a time as seconds since 1970.

    :param written: ISO 8601; without a zone it is local time, a date alone is its first moment
    :raises ValueError: it is not such a time, or lies before 1970
    """
    seconds = datetime.fromisoformat(written).timestamp()
    if not 0 <= seconds <= _LATEST:
        raise ValueError(f"{written} is before 1970")
    return seconds


def option(name: str, written: str | None) -> float | None:
    """Return the time that an option gives, None if it was not given.

    :raises Invalid: it is no time
    """
    if written is None:
        return None
    try:
        return seconds_of(written)
    except (ValueError, OverflowError, OSError) as error:
        raise Invalid(
            text("command.memory_no_time", name=name, given=written), field=name, hint=text("command.memory_time_hint")
        ) from error


def iso(seconds: float | None) -> str | None:
    """Write a time as ISO 8601, in local time."""
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, UTC)
    try:
        return moment.astimezone().isoformat()
    except OverflowError:
        # The last day of the year 9999, east of Greenwich.
        return moment.isoformat()
