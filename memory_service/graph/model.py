"""What the graph, the scenes and the media store take and give back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memory_service.model import Term

PERSON: Final = "person"
MODEL: Final = "model"
RULE: Final = "rule"
ORIGINS: Final = (PERSON, MODEL, RULE)
"""Who made a fact: a person by a command, the model by a tool, or a rule that read a text."""

RELEVANCE: Final = "relevance"
RECENT: Final = "recent"

MAX_FACTS = 64
"""So many facts at most are committed at once: they share a transaction, for which others wait."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement to be stored.

    :ivar type: the relation in which the subject stands to the object
    :ivar sentence: the sentence that it came from, word for word
    :ivar confidence: 0…1
    :ivar subject_type: what kind of thing the subject is, empty if that is not known
    :ivar scenes: keys of the scenes in which it applies
    :ivar source: id of the event that it came from, if not that of the telling
    """

    subject: str
    type: str
    object: str
    sentence: str = ""
    confidence: float = 1.0
    subject_type: str = ""
    object_type: str = ""
    scenes: tuple[str, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Telling:
    """Who told facts, when, and who may see them.

    :ivar visible_to: the principals who may see them; empty if ``shared``
    :ivar time: since when they hold, seconds since 1970
    :ivar origin: one of :data:`ORIGINS`
    :ivar session: the lane, as ``channel/conversation``
    :ivar source: id of the turn in which they were told; its event may be stored later. None if there is none
    """

    principal: str
    visible_to: tuple[str, ...]
    shared: bool
    time: float
    origin: str
    session: str = ""
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A fact that was not stored.

    :ivar index: its place among those that were given
    :ivar field: what is wrong with it: ``subject``, ``type``, ``object``, ``sentence``, ``confidence``, ``source`` or
        ``scenes``
    """

    index: int
    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of facts: each is new, known or refused.

    :ivar new: ids of the relations that are stored now and were not before, or had been deleted
    :ivar known: ids of the relations that were there already; they are left as they are
    """

    new: tuple[str, ...]
    known: tuple[str, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact as it is stored.

    :ivar number: its number in the store, by which its vectors are found; never shown to anybody
    :ivar status: ``active``, ``superseded`` by a newer value, or ``deleted``
    :ivar principal: who told it
    :ivar valid_from: since when it holds, seconds since 1970; with ``valid_to`` until when, None if it still does
    :ivar created: when it was written down
    :ivar source: id of the event that it came from, None if there is none
    """

    id: str
    number: int
    subject: str
    type: str
    object: str
    subject_type: str
    object_type: str
    status: str
    principal: str
    confidence: float
    valid_from: float
    valid_to: float | None
    created: float
    session: str
    source: str | None
    sentence: str

    @property
    def statement(self) -> str:
        """The fact in one line, without the sentence that it came from."""
        return f"{self.subject} {self.type} {self.object}"

    @property
    def text(self) -> str:
        """The fact, with the sentence that it came from."""
        return f"{self.statement}: {self.sentence}" if self.sentence else self.statement


@dataclass(frozen=True, slots=True)
class FactCandidate:
    """A fact that has words of the question in it; see :class:`memory_service.model.Candidate`."""

    relation: Relation
    relevance: float
    matched: frozenset[int]
    number: int


@dataclass(frozen=True, slots=True)
class GraphQuestion:
    """What is asked of the graph.

    :ivar keywords: names or parts of names, best given one by one
    :ivar terms: the words of the question as :func:`memory_service.words.question.terms` cuts it
    :ivar depth: how many relations away from what was named one may go
    :ivar sort: :data:`RELEVANCE`, or :data:`RECENT` for the newest first
    :ivar session: only facts told there
    :ivar entities: so many entities at most come back, with ``relations`` the relations
    """

    keywords: Sequence[str]
    terms: Sequence[Term] = ()
    depth: int = 2
    sort: str = RELEVANCE
    session: str | None = None
    entities: int = 20
    relations: int = 10


@dataclass(frozen=True, slots=True)
class Recollection:
    """What the graph knows of a question.

    :ivar relations: in the order that was asked for
    :ivar former: for each of them that took the place of others, what these said, the newest first; by id
    :ivar entities: the names that are spoken of, best first
    :ivar is_named: something that was asked for is the name of an entity, or its beginning, so that the relations are
        about it and do not just share words with the question
    :ivar omitted: how many relations were found beyond those
    """

    relations: tuple[Relation, ...]
    former: Mapping[str, tuple[Relation, ...]]
    entities: tuple[str, ...]
    is_named: bool
    omitted: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is on record about an entity now.

    :ivar text: a line for each fact, the newest first
    :ivar relations: the ids of the facts
    """

    name: str
    text: str
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which facts to purge: all for which everything that is given holds. Something must be given.

    :ivar subject: the name of the subject, with ``object`` that of the object
    :ivar subject_contains: a part of the name of the subject, with ``object_contains`` of the object
    """

    subject: str | None = None
    type: str | None = None
    object: str | None = None
    subject_contains: str | None = None
    object_contains: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change of the graph did.

    :ivar relations: how many relations were changed
    :ivar dropped: how many of them ended: as doubles, as empty, or since they were to be deleted
    :ivar entities: how many entities vanished from sight
    :ivar examples: statements of some of them, as they were before
    """

    relations: int
    dropped: int = 0
    entities: int = 0
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Correction:
    """A fact that takes the place of another.

    :ivar old: subject, type and object of the fact, exactly
    :ivar new: what they become; None: as it was
    """

    old: tuple[str, str, str]
    new: tuple[str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Corrected:
    """What a correction did: for each audience that has the fact, the old relation and the one that holds now.

    :ivar is_new: False if the fact had been corrected like this before, and nothing was to be done
    """

    pairs: tuple[tuple[Relation, Relation], ...]
    is_new: bool


@dataclass(frozen=True, slots=True)
class GraphStats:
    """How much an audience can see of the graph.

    :ivar superseded: how many relations have been replaced by newer ones
    :ivar busiest: the entities with the most relations: name and how many
    """

    entities: int
    relations: int
    superseded: int
    busiest: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A recurring situation.

    :ivar key: layers of names, the widest first, with ``/`` between them
    :ivar origin: ``declared`` by somebody, or ``emergent``: it was noticed
    :ivar strength: how often it was seen
    """

    key: str
    origin: str
    strength: float


@dataclass(frozen=True, slots=True)
class SceneMember:
    """Something that belongs to a scene.

    :ivar kind: ``event``, ``document`` or ``relation``
    :ivar id: the id of it
    :ivar weight: 0…1
    """

    scene: str
    kind: str
    id: str
    weight: float


@dataclass(frozen=True, slots=True)
class Observed:
    """What a situation was taken for.

    :ivar key: the scene that it belongs to now; None if it is not known yet
    :ivar is_founded: the scene is new
    """

    key: str | None
    is_founded: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a media block belongs to.

    :ivar kind: ``event``, ``document`` or ``entity``
    :ivar id: of an event or document; for an entity its name
    :ivar visible_to: for an entity: whose it is; empty if ``shared``
    """

    kind: str
    id: str
    visible_to: tuple[str, ...] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class MediaBlock:
    """Bytes that belong to something.

    :ivar digest: SHA-256 of the bytes, in hexadecimal
    """

    id: str
    digest: str
    mime: str
    bytes: int
    caption: str


@dataclass(frozen=True, slots=True)
class MediaCheck:
    """What is wrong between the media's rows and files: digests.

    :ivar missing: there is a row, but no file
    :ivar damaged: the file has other bytes than its name says
    :ivar orphans: files that no row speaks of, also those that were being written in a crash
    """

    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    orphans: tuple[str, ...]
