"""Events, notes and vectors that follow from their number alone, so that two processes agree on what they are."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

from memory_service.model import Event, Note, ToolResult

PEOPLE = ("ann", "bob", "客人")
DIMENSIONS = 24
_BEGINNING = 1_700_000_000.0
_WORDS = "the boiler printer garden of ticket invoice on Friday 明天 打印机 的 密码 花园 在 医院 牙医 and 42 v3.1 /etc/hosts".split()


@lru_cache(maxsize=8_192)
def event(number: int) -> Event:
    """Return the event with a number; every fiftieth is long enough to lie on many pages."""
    dice = random.Random(number)
    person = PEOPLE[number % len(PEOPLE)]
    shared = dice.random() < 0.2
    seen_by = {person, *dice.sample(PEOPLE, dice.randint(0, 2))}
    results = [
        ToolResult(f"tool_{index}", _text(dice, 20), no_memory=dice.random() < 0.3)
        for index in range(dice.choice((0, 0, 0, 1, 2)))
    ]
    return Event(
        id=event_id(number),
        channel=dice.choice(("webui", "cli")),
        conversation=f"c{number % 4}",
        principal=person,
        speaker=person.title(),
        visible_to=() if shared else tuple(sorted(seen_by)),
        shared=shared,
        time=_BEGINNING + number * 997 + dice.random(),
        input=f"{_text(dice, 12)} {word(number)}",
        response=_text(dice, 4_000 if number % 50 == 0 else 25),
        tools_used=tuple(result.name for result in results),
        tool_results=tuple(results),
        origin=dice.choice(("user", "user", "self")),
    )


def event_id(number: int) -> str:
    """Return the id of an event."""
    return f"event-{number}"


def number_of(id: str) -> int:
    """Return the number of an event's, note's or relation's id."""
    return int(id.rpartition("-")[2])


def word(number: int) -> str:
    """Return a word that stands in one event only."""
    return f"only{number}this"


def note(number: int, version: int, source: int | None) -> Note:
    """Return a version of a note.

    :param source: the event in which it was written
    """
    dice = random.Random(f"{number} {version}")
    person = PEOPLE[number % len(PEOPLE)]
    return Note(
        id=f"note-{number}",
        principal=person,
        visible_to=() if number % 5 == 0 else (person,),
        shared=number % 5 == 0,
        time=_BEGINNING + number,
        content=_text(dice, 400 if number % 10 == 0 else 30),
        summary=f"version {version} of note {number}",
        tags=tuple(dice.sample(("home", "家", "work"), 2)),
        source_event=None if source is None else event_id(source),
    )


def code(space: int, kind: str, item: int, part: str) -> bytes:
    """Return what an encoder would make of a part of an item."""
    return hashlib.sha256(f"{space} {kind} {item} {part}".encode()).digest()[:DIMENSIONS]


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.randint(1, words)))
