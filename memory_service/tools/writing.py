"""How what a tool found is written for the model: whole, with its time, within a budget."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence
from typing import Final

from memory_service.model import Document, Event, estimated_tokens

BUDGET_TOKENS: Final = 3_000
"""What one answer may cost; the best find is shown whole even if it alone costs more."""

_MOST_CHARACTERS: Final = 60_000
"""Of a single find; the rest is counted, so that the model knows that there is more."""
_JOINER = "\u200d"


class Budget:
    """What is left of an answer's room."""

    def __init__(self, tokens: int = BUDGET_TOKENS) -> None:
        self._left = tokens
        self._is_used = False

    def takes(self, text: str) -> bool:
        """Make room for a text if there is any; the first always gets it."""
        tokens = estimated_tokens(text)
        if self._is_used and tokens > self._left:
            return False
        self._is_used = True
        self._left -= tokens
        return True


def moment(seconds: float) -> str:
    """Write a time as people here would, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def days(first: float, last: float) -> str:
    """Write from which day to which something went."""
    begin, end = (time.strftime("%Y-%m-%d", time.localtime(seconds)) for seconds in (first, last))
    return begin if begin == end else f"{begin} to {end}"


def event_text(event: Event, *, with_id: bool = False) -> str:
    """Write an event, whole."""
    name = f"{event.id} " if with_id else ""
    text = f"{name}[{moment(event.time)}] {event.speaker} by {event.channel}: {event.input.strip()}"
    reply = event.response.strip()
    return _bounded(f"{text}\n→ you: {reply}" if reply else text)


def note_text(note: Document) -> str:
    """Write a note, whole."""
    tags = f" ({', '.join(note.tags)})" if note.tags else ""
    return _bounded(f"Note of {moment(note.first_time)}{tags}: {note.content.strip()}")


def beginning(text: str, characters: int) -> str:
    """Return the first characters of a text, none of them torn: an accent stays with what it belongs to."""
    end = min(characters, len(text))
    while 0 < end < len(text) and (_continues(text[end]) or text[end - 1] == _JOINER):
        end -= 1
    return text[:end] if end else text[:characters]


def counted(number: int, one: str, many: str = "") -> str:
    """Write a number of things; ``many`` is their plural if it is not formed with an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def joined(parts: Sequence[str]) -> str:
    """Put the parts of an answer one under another."""
    return "\n\n".join(part for part in parts if part)


def _continues(character: str) -> bool:
    return character == _JOINER or unicodedata.combining(character) != 0 or unicodedata.category(character) in _MARKS


_MARKS = ("Mn", "Me", "Sk")
"""Marks and variation selectors, and the signs that give an emoji its colour."""


def _bounded(text: str) -> str:
    more = len(text) - _MOST_CHARACTERS
    return f"{text[:_MOST_CHARACTERS]}\n[{more} more characters]" if more > 0 else text
