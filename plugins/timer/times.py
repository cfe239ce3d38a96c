"""When a timer is due: what people write, and the next time of one that repeats. Wall clock throughout."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin import parse_duration

LEAST_REPEAT_S = 60.0
_DAYS = {"daily": 1, "weekly": 7}
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def parse_moment(text: str, now: float) -> float:
    """Return a point in time as seconds since 1970.

    :param text: ISO 8601, in local time where it names no zone; or a time of day, which means the next one
    :raises Invalid: it is neither
    """
    today = datetime.fromtimestamp(now)
    clock = _TIME_OF_DAY.fullmatch(text.strip())
    if clock:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (moment if moment > today else moment + timedelta(days=1)).timestamp()
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError) as error:
        hint = f"write it as 2026-12-24T18:00, with +01:00 for another zone, or as 18:00; now it is {show(now)}"
        raise Invalid(f"{text!r} is not a time", field="at", hint=hint) from error


def check_repeat(text: str) -> str:
    """Return a repetition as it is kept: ``daily``, ``weekly`` or a duration.

    :raises Invalid: it is neither, or shorter than a minute
    """
    word = text.strip().lower()
    if word in _DAYS:
        return word
    if parse_duration(word, field="repeat") < LEAST_REPEAT_S:
        raise Invalid(f"repeat is {text!r}, less than a minute", field="repeat", hint="use 1m or more")
    return word


def next_due(due: float, repeat: str, now: float) -> float:
    """Return the first time after ``now`` of a timer that repeats; those in between are left out.

    ``daily`` and ``weekly`` keep the time of day, also when the clocks change.
    """
    if repeat in _DAYS:
        step = timedelta(days=_DAYS[repeat])
        moment = datetime.fromtimestamp(due)
        # Whole steps at once, so that a year of sleep costs no loop of a year.
        moment += step * max(0, int((datetime.fromtimestamp(now) - moment) / step) - 1)
        while moment.timestamp() <= now:
            moment += step
        return moment.timestamp()
    interval_s = parse_duration(repeat)
    missed = max(0, int((now - due) // interval_s))
    return due + (missed + 1) * interval_s


def show(moment: float) -> str:
    """Return a point in time as local ISO 8601, to the second."""
    return datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds")
