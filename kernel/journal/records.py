"""What goes into the journal and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FINAL_STEP = "done"
OUTCOMES = frozenset({"answer", "error", "stopped", "merged", "skipped"})
REMEMBERED_OUTCOMES = ("answer", "error", "stopped")
"""Outcomes of turns that happened, so that the memory service is told of them."""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """An input as it is accepted.

    :ivar turn_id: chosen by the caller, unique for ever
    :ivar delivery_id: what makes a repeated delivery recognisable within its channel; None if the channel has no ids
    :ivar frame: the serialised frame; the journal does not look into it
    :ivar schema_version: of the frame, so that a newer program can read an older one's
    """

    turn_id: str
    channel: str
    conversation: str
    principal: str
    text: str
    frame: bytes
    schema_version: int = 1
    delivery_id: str | None = None
    no_memory: bool = False
    step: str = "received"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Receipt for an input: the turn that answers it, and whether an earlier delivery had started it already."""

    turn_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class JournaledTurn:
    """A turn as the journal knows it. Times are seconds since 1970, on the wall clock.

    :ivar step: the last step that was saved; the turn goes on from there
    :ivar outcome: None as long as the turn is unfinished
    :ivar attempts: how often the turn was begun since it last reached a new step
    """

    turn_id: str
    channel: str
    conversation: str
    principal: str
    delivery_id: str | None
    accepted_at: float
    step: str
    frame: bytes
    schema_version: int
    outcome: str | None
    text: str
    answer: str | None
    result: dict[str, Any] | None = field(repr=False)
    finished_at: float | None
    no_memory: bool
    remembered: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation of a principal: its first words as a title, and when its last input came."""

    conversation: str
    title: str
    last_time: float


@dataclass(frozen=True, slots=True)
class Counts:
    """How many turns the journal holds, and how many of those that finished the memory service was not told of."""

    unfinished: int
    finished: int
    unremembered: int


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that the memory must know.

    :ivar sequence: its place in the journal, by which one pages
    :ivar remembered: the memory service said that it has it
    """

    sequence: int
    turn_id: str
    finished_at: float
    remembered: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """Which turns to forget: those that the ids name or, without ids, those for which all other conditions hold.

    :ivar after: accepted at this time or later, seconds since 1970
    :ivar before: accepted before this time
    """

    ids: tuple[str, ...] = ()
    principal: str | None = None
    after: float | None = None
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many turns were forgotten, or would be.

    :ivar unfinished: turns that are not over yet, and so were left as they are
    :ivar earlier: turns that had been forgotten before
    """

    turns: int
    unfinished: int
    earlier: int
