"""Days as people write them, brought to one spelling: ``2023-05-02``, or ``05-02`` where no year is named.

An event's own day stands in the index in both spellings, so that a question that names it finds it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from memory_service.words.scan import fold

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_MONTH = r"(?P<name>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_PATTERNS = (
    re.compile(r"(?:(?P<year>\d{4})\s*年\s*)?(?P<month>\d{1,2})\s*月\s*(?P<day>\d{1,2})(?:\s*[日号號])?"),
    re.compile(r"(?<!\d)(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)"),
    re.compile(rf"\b{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)(?:,?\s+(?P<year>\d{{4}})\b)?"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+(?P<year>\d{{4}})\b)?(?![a-z])"),
)


def days(text: str) -> Iterator[str]:
    """Give the days that a question names."""
    folded = fold(text)
    for pattern in _PATTERNS:
        for match in pattern.finditer(folded):
            named = match.groupdict()
            month = _MONTHS.index(named["name"]) + 1 if named.get("name") else int(named["month"])
            day = int(named["day"])
            if 1 <= month <= 12 and 1 <= day <= 31:
                year = f"{named['year']}-" if named["year"] else ""
                yield f"{year}{month:02}-{day:02}"


def day_of(wall_time: float) -> str:
    """Return the spellings under which an event's day stands in the index, by the clock of this household.

    :param wall_time: seconds since 1970
    """
    return time.strftime("%Y-%m-%d %m-%d", time.localtime(wall_time))
