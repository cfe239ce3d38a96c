"""Events, notes and vectors that follow from their number alone, so that two processes agree on what they are."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

from memory_service.graph.model import MODEL, Fact, Telling
from memory_service.model import Event, Note, ToolResult

PEOPLE = ("ann", "bob", "客人")
DIMENSIONS = 24
_BEGINNING = 1_700_000_000.0
_WORDS = (
    "the boiler printer garden of ticket invoice on Friday and 42 v3.1 /etc/hosts 明天 打印机 的 密码 花园 在 医院 牙医"
).split()


@lru_cache(maxsize=8_192)
def event(number: int) -> Event:
    """Return the event with a number; every hundredth is long enough to lie on many pages."""
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
        response=_text(dice, 2_500 if number % 100 == 0 else 25),
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


def fact_count(number: int) -> int:
    """Return how many facts are told together under a number."""
    return 1 + number % 4


def place(number: int, index: int | None) -> str:
    """Return the object of a fact; of the first one, after its correction, if ``index`` is None."""
    return f"place {number}-{index}" if index is not None else f"elsewhere {number}"


def facts(number: int, source: int | None) -> tuple[Fact, ...]:
    """Return the facts that are told together under a number.

    :param source: the event in which they are told
    """
    dice = random.Random(f"facts {number}")
    return tuple(
        Fact(
            subject=f"thing-{number}",
            type="is at",
            object=place(number, index),
            sentence=_text(dice, 20),
            source=None if source is None else event_id(source),
        )
        for index in range(fact_count(number))
    )


def telling(number: int, source: int | None) -> Telling:
    """Return who tells these facts: whoever may see the turn in which they are told may see them."""
    person = PEOPLE[number % len(PEOPLE)]
    turn = None if source is None else event(source)
    return Telling(
        principal=person,
        visible_to=(person,) if turn is None else turn.visible_to,
        shared=turn is not None and turn.shared,
        time=_BEGINNING + number,
        origin=MODEL,
        source=None if turn is None else turn.id,
    )


def picture(number: int) -> bytes:
    """Return the bytes of a media block."""
    dice = random.Random(f"picture {number}")
    return dice.randbytes(dice.choice((300, 5_000, 40_000)))


def caption(number: int) -> str:
    """Return the caption by which a media block is known again."""
    return f"picture-{number}"


def code(space: int, kind: str, item: int, part: str) -> bytes:
    """Return what an encoder would make of a part of an item."""
    return hashlib.sha256(f"{space} {kind} {item} {part}".encode()).digest()[:DIMENSIONS]


def _text(dice: random.Random, words: int) -> str:
    return " ".join(dice.choices(_WORDS, k=dice.randint(1, words)))
