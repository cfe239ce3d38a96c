"""What a question may be answered with: events, notes and facts, found by words, by meaning, or by both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory_service.graph.model import FactCandidate, Relation
from memory_service.model import DOCUMENT, GRAPH, Candidate, Event, Hit, Note, NoteCandidate, Term

EVENT, NOTE, FACT = "event", "note", "fact"


@dataclass(frozen=True, slots=True)
class Found:
    """A candidate, whatever it is.

    :ivar hit: how it will be shown, without its score
    :ivar number: its number in the store
    :ivar relevance: BM25, 0.0 if no word of the question was found in it
    :ivar matched: which terms it has, as indexes into the terms asked for
    :ivar cosine: how near its meaning is to the question's, None if that is not known
    """

    hit: Hit
    number: int
    relevance: float = 0.0
    matched: frozenset[int] = frozenset()
    cosine: float | None = None

    def near(self, cosine: float | None) -> Found:
        """Return the same with how near its meaning is."""
        return self if cosine is None else replace(self, cosine=cosine)


def event_found(event: Event, number: int, relevance: float = 0.0, matched: frozenset[int] = frozenset()) -> Found:
    """Return an event as a candidate."""
    hit = Hit(
        event.id, EVENT, event.tier, event.time, event.speaker, event.channel, event.input, event.response, 0.0, ""
    )
    return Found(hit, number, relevance, matched)


def note_found(note: Note, number: int, relevance: float = 0.0, matched: frozenset[int] = frozenset()) -> Found:
    """Return a note as a candidate."""
    hit = Hit(note.id, NOTE, DOCUMENT, note.time, note.principal, "", _text_of(note), "", 0.0, "")
    return Found(hit, number, relevance, matched)


def fact_found(fact: Relation, number: int, relevance: float = 0.0, matched: frozenset[int] = frozenset()) -> Found:
    """Return a fact as a candidate."""
    hit = Hit(fact.id, FACT, GRAPH, fact.valid_from, fact.principal, "", fact.text, "", 0.0, "")
    return Found(hit, number, relevance, matched)


def by_words(candidates: Sequence[Candidate | NoteCandidate | FactCandidate]) -> list[Found]:
    """Return what was found by words as candidates."""
    return [_found(each) for each in candidates]


def _found(candidate: Candidate | NoteCandidate | FactCandidate) -> Found:
    how = (candidate.number, candidate.relevance, candidate.matched)
    if isinstance(candidate, Candidate):
        return event_found(candidate.event, *how)
    if isinstance(candidate, NoteCandidate):
        return note_found(candidate.note, *how)
    return fact_found(candidate.relation, *how)


def why(found: Found, terms: Sequence[Term], is_near: bool) -> str:
    """Say by what it was found: its words in the order of the question, and whether its meaning is near."""
    words = [terms[index].text for index in sorted(found.matched) if terms[index].is_word]
    return " ".join([*words, "(meaning)"] if is_near else words)


def _text_of(note: Note) -> str:
    return note.content if note.content.startswith(note.summary) else f"{note.summary}\n{note.content}"
