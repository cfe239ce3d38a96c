"""Arguments of tools that a model wrote: read with complaints that name the field."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Final

from memory_service.fields import Fields

_QUERY_CHARACTERS: Final = 2_000
_DATE_CHARACTERS: Final = 10


def query_of(arguments: Fields, name: str = "query", advice: str = "say in a few words what to look for") -> str:
    """Return what to look for.

    :param advice: what to do about an empty one
    :raises Invalid: it is empty or too long
    """
    query = arguments.text(name).strip()
    if not query:
        raise arguments.wrong(name, f"is empty: {advice}")
    if len(query) > _QUERY_CHARACTERS:
        raise arguments.wrong(name, f"has {len(query)} characters, at most {_QUERY_CHARACTERS} are allowed")
    return query


def moment_of(arguments: Fields, name: str, *, is_end: bool) -> float | None:
    """Return a time, seconds since 1970; None if it was left out. Without a zone it is local time.

    :param is_end: a day alone means its end, not its beginning
    :raises Invalid: it is no date and no time
    """
    if not arguments.has(name):
        return None
    written = arguments.text(name).strip()
    try:
        read = datetime.fromisoformat(written)
        if len(written) <= _DATE_CHARACTERS and is_end:
            read = datetime.combine(read.date() + timedelta(days=1), time())
        return read.timestamp()
    except (ValueError, OverflowError, OSError):
        raise arguments.wrong(name, "must be a date or a time, such as 2026-11-30 or 2026-11-30T18:00") from None
