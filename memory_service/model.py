"""What the memory service keeps and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered during a turn.

    :ivar no_memory: kept with its event, but never searchable
    """

    name: str
    output: str
    no_memory: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """One turn, word for word.

    :ivar id: the turn's id; storing it again changes nothing
    :ivar channel: with ``conversation`` the lane in which it happened
    :ivar principal: whose turn it was
    :ivar speaker: the name of who spoke, as people know it
    :ivar visible_to: the principals who may see it; empty if ``shared``
    :ivar shared: the whole household may see it
    :ivar time: when it happened, seconds since 1970, wall clock
    :ivar origin: ``user``, or ``self`` for what the agent began
    """

    id: str
    channel: str
    conversation: str
    principal: str
    speaker: str
    visible_to: tuple[str, ...]
    shared: bool
    time: float
    input: str
    response: str
    tools_used: tuple[str, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    origin: str = "user"


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a question, ready to be looked up.

    :ivar text: the word as a person wrote it, for saying why something was found
    :ivar tokens: what it is in the index: one token, or several that must follow one another
    :ivar is_symbol: a number, version, path, address or the like, where only the exact one will do
    :ivar is_word: False for a pair of characters looked up beside the words, in case they were cut wrongly
    """

    text: str
    tokens: tuple[str, ...]
    is_symbol: bool = False
    is_word: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """An event that has words of the question in it.

    :ivar relevance: BM25, greater is better; comparable only within one search
    :ivar matched: which terms it has, as indexes into the terms asked for
    """

    event: Event
    relevance: float
    matched: frozenset[int]


@dataclass(frozen=True, slots=True)
class Search:
    """What the store knows of a question.

    :ivar candidates: best first
    :ivar total: how many events there are at all
    :ivar frequencies: for each term, in how many events it occurs (for one of several tokens: an upper bound)
    """

    candidates: tuple[Candidate, ...]
    total: int
    frequencies: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that is worth putting before the model.

    :ivar score: greater is better; comparable only within one answer
    :ivar why: the words that it was found by
    """

    event: Event
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Recalled:
    """The answer to a question.

    :ivar hits: whole events, best first, within the budget
    :ivar no_record: nothing found is similar enough to the question to count as a record of it
    :ivar omitted: how many hits did not fit into the budget
    """

    hits: tuple[Hit, ...]
    no_record: bool
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """How much there is.

    :ivar tiers: number of events in each tier
    :ivar bytes: size of the database with its write-ahead log
    :ivar oldest: time of the oldest event, None if there is none
    """

    events: int
    tiers: Mapping[str, int]
    bytes: int
    oldest: float | None
    newest: float | None
