"""What the memory service keeps and what it gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CONTEXT: Final = "context"
DOCUMENT: Final = "document"
GRAPH: Final = "graph"
TIERS: Final = (CONTEXT, DOCUMENT, GRAPH)
"""Who owns an event: the working window, an archive document, or the graph. Moving it is one transaction."""


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text is: one for each Chinese character, one for four letters of others.

    Meant to be rather too high than too low; the sources' tokenizers differ by a third.
    """
    wide = 0 if text.isascii() else sum(character >= "\u2e80" for character in text)
    return wide + -(-(len(text) - wide) // 4)


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
    :ivar tier: who owns it now, one of :data:`TIERS`; an event is always appended to the context
    :ivar document: id of the archive document that it is part of, None in the context
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
    tier: str = CONTEXT
    document: str | None = None

    @property
    def characters(self) -> int:
        """How long its texts are together."""
        return len(self.input) + len(self.response) + sum(len(result.output) for result in self.tool_results)


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
    :ivar number: its number in the store, by which its vectors are found
    """

    event: Event
    relevance: float
    matched: frozenset[int]
    number: int = 0


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
    """Something that is worth putting before the model.

    :ivar kind: ``event``, ``note`` or ``fact``
    :ivar tier: where it lies, one of :data:`TIERS`
    :ivar speaker: the name of who said it; of a note or a fact, whose it is
    :ivar text: what was said, what the note says, or the fact with the sentence that it came from
    :ivar reply: what the agent answered, empty for all but events
    :ivar score: greater is better; comparable only within one answer
    :ivar why: the words that it was found by, and ``meaning`` if its meaning was near
    """

    id: str
    kind: str
    tier: str
    time: float
    speaker: str
    channel: str
    text: str
    reply: str
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
class InContext:
    """What must be known of an event of the context to decide whether it stays there.

    :ivar number: its number in the store, by which its vectors are found
    :ivar tokens: what it costs in the prompt, estimated
    """

    id: str
    number: int
    channel: str
    conversation: str
    time: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Note:
    """A text that was written into the memory on purpose.

    :ivar id: writing it again under the same id replaces its text
    :ivar visible_to: the principals who may see it; empty if ``shared``
    :ivar time: when it was written, seconds since 1970
    :ivar source_event: the turn in which it was written
    """

    id: str
    principal: str
    visible_to: tuple[str, ...]
    shared: bool
    time: float
    content: str
    summary: str
    tags: tuple[str, ...] = ()
    source_event: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it is stored.

    :ivar kind: ``archive`` for a group of events, ``note`` for a text written on purpose
    :ivar events: the ids of an archive's events, oldest first
    :ivar first_time: when the oldest of them happened, with ``last_time`` the newest; for a note, when it was written
    :ivar reads: how often it was read deliberately; what recall shows by itself does not count
    """

    id: str
    kind: str
    tier: str
    principal: str
    visible_to: tuple[str, ...]
    shared: bool
    first_time: float
    last_time: float
    summary: str
    content: str
    tags: tuple[str, ...]
    events: tuple[str, ...]
    reads: int
    last_read: float | None


@dataclass(frozen=True, slots=True)
class NoteCandidate:
    """A note that has words of the question in it; see :class:`Candidate`."""

    note: Note
    relevance: float
    matched: frozenset[int]
    number: int = 0


@dataclass(frozen=True, slots=True)
class NoteSearch:
    """What the store knows of a question among notes; see :class:`Search`."""

    candidates: tuple[NoteCandidate, ...]
    total: int
    frequencies: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToEmbed:
    """An item that has no vector yet.

    :ivar kind: ``event``, ``document``, ``relation`` or ``media``
    :ivar number: its number in the store, within its kind
    :ivar audience: the number of the audience that may see it
    :ivar parts: what to encode: texts by the name of the part; empty if there is nothing to encode
    """

    kind: str
    number: int
    audience: int
    parts: Mapping[str, str]


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


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at to see whether the store is whole.

    :ivar name: what holds if it is, in words with underscores
    :ivar count: how often it does not
    :ivar examples: some of what it does not hold for: ids, numbers, or what the medium says
    """

    name: str
    count: int
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it always holds."""
        return self.count == 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at everything that is stored has found."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is whole."""
        return all(check.ok for check in self.checks)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be forgotten: what the ids name or, without ids, that for which all other conditions hold.

    :ivar ids: of events, notes, archive documents (for all their events) and relations
    :ivar principal: whose it is
    :ivar after: it happened at this time or later, seconds since 1970
    :ivar before: it happened before this time
    """

    ids: tuple[str, ...] = ()
    principal: str | None = None
    after: float | None = None
    before: float | None = None


@dataclass(frozen=True, slots=True)
class Selected:
    """What a selection holds.

    :ivar relations: how many relations rest on nothing else
    :ivar examples: some of its events, the newest first
    """

    events: int
    notes: int
    relations: int
    examples: tuple[Event, ...]


@dataclass(slots=True)
class Deleted:
    """What was deleted for good.

    :ivar counts: how many rows, by what they were
    :ivar numbers: of events, documents and relations, for those who keep something of them in memory
    """

    counts: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, list[int]] = field(default_factory=dict)

    def add(self, other: Deleted) -> None:
        """Add what was deleted in another step."""
        self.counts.update(other.counts)
        for kind, numbers in other.numbers.items():
            self.numbers.setdefault(kind, []).extend(numbers)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far the log of conversations has come.

    :ivar event: number of the last event in it
    :ivar file: name of the file in use
    :ivar bytes: its length; what stands behind that was not confirmed
    :ivar opened: when the file was begun, seconds since 1970
    """

    event: int
    file: str
    bytes: int
    opened: float
