"""Days as people write them, brought to one spelling: ``2023-05-02``, or ``05-02`` where no year is named.

An event's own day stands in the index in both spellings, so that a question that names it finds it; so does a day that
a text names, however it is written there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_MONTH = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_ENGLISH = (
    re.compile(rf"\b{_MONTH}\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:)(?:,?\s+(?P<year>\d{{4}})\b)?"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}(?:,?\s+(?P<year>\d{{4}})\b)?"),
)
_CHINESE = (re.compile(r"(?:(?P<year>\d{4})\s*年\s*)?(?P<month>\d{1,2})\s*月\s*(?P<day>\d{1,2})(?:\s*[日号號])?"),)
_NUMBERS = (re.compile(r"(?<!\d)(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?!\d)"),)
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class NamedDay:
    """A day that a text names.

    :ivar day: its spelling in the index
    :ivar start: where it stands in the text, with ``end``
    """

    day: str
    start: int
    end: int


def days(folded: str) -> Iterator[NamedDay]:
    """Give the days that a folded text names."""
    for pattern in _worth_trying(folded):
        for match in pattern.finditer(folded):
            named = match.groupdict()
            month = _MONTHS.index(named["name"][:3]) + 1 if named.get("name") else int(named["month"])
            day = int(named["day"])
            if 1 <= month <= 12 and 1 <= day <= 31:
                year = f"{named['year']}-" if named["year"] else ""
                yield NamedDay(f"{year}{month:02}-{day:02}", *match.span())


def _worth_trying(folded: str) -> Iterator[re.Pattern[str]]:
    """Leave out the patterns that cannot match: most texts name no day, and trying takes ten times as long."""
    if _DIGIT.search(folded):
        if "月" in folded:
            yield from _CHINESE
        yield from _NUMBERS
        if any(month in folded for month in _MONTHS):
            yield from _ENGLISH


def day_of(wall_time: float) -> str:
    """Return the spellings under which an event's day stands in the index, and its year, by this household's clock.

    :param wall_time: seconds since 1970
    """
    return time.strftime("%Y-%m-%d %m-%d %Y", time.localtime(wall_time))
