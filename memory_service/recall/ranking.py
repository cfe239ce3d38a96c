"""The order of the candidates, and whether the best of them is a record of what was asked at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memory_service.model import Candidate, Hit, Search, Term

SYMBOL_BONUS = 2.0
"""How many times its rarity an exact number, version, path or day adds to the score of the event that has it."""

ENOUGH_SHARE = 0.25
"""The share of the question's informative words, weighed by rarity, that makes an event a record of it."""

ENOUGH_RARE_WORDS = 2.5
"""Or so many words as rare as can be, for long questions, of which no single event has a quarter.

Both were chosen on questions whose answer is there (false alarms: CMRC and XQuAD 1 %, LoCoMo 2 %, MemoryBank 6 %) and
on questions to somebody else's memory (flagged: 52 to 97 %)."""

_TELLING_CHARACTERS = 4
_TELLING_SHARE = 0.01
_TELLING_EVENTS = 3


def rank(search: Search, terms: Sequence[Term]) -> list[Hit]:
    """Return the candidates as hits, best first; of equally good ones the newest first."""
    weights = [_rarity(frequency, search.total) for frequency in search.frequencies]
    hits = [
        Hit(candidate.event, _score(candidate, terms, weights), _why(candidate, terms))
        for candidate in search.candidates
    ]
    return sorted(hits, key=lambda hit: (-hit.score, -hit.event.time))


def is_no_record(search: Search, terms: Sequence[Term]) -> bool:
    """Whether no candidate has enough of the question in it to count as a record of it.

    A rare number, version, path or day that an event has is enough by itself, whatever else was asked of it. Otherwise
    words weigh by how rare they are, so that a hit on a name counts for more than one on ``weekend``; a word that
    no event has weighs most. Pairs of characters beside the words do not count.
    """
    matched = frozenset[int]().union(*(candidate.matched for candidate in search.candidates))
    if any(_is_telling(terms[index], search.frequencies[index], search.total) for index in matched):
        return False
    words = {index: _rarity(search.frequencies[index], search.total) for index, t in enumerate(terms) if t.is_word}
    best = max((sum(words.get(index, 0.0) for index in c.matched) for c in search.candidates), default=0.0)
    enough = min(ENOUGH_SHARE * sum(words.values()), ENOUGH_RARE_WORDS * _rarity(0, search.total))
    return best == 0.0 or best < enough


def _is_telling(term: Term, frequency: int, total: int) -> bool:
    long_enough = len(term.tokens[0]) >= _TELLING_CHARACTERS
    return term.is_symbol and long_enough and frequency <= max(_TELLING_EVENTS, total * _TELLING_SHARE)


def _score(candidate: Candidate, terms: Sequence[Term], weights: Sequence[float]) -> float:
    exact = sum(weights[index] for index in candidate.matched if terms[index].is_symbol)
    return candidate.relevance + SYMBOL_BONUS * exact


def _rarity(frequency: int, total: int) -> float:
    """Return the inverse document frequency, in the form that is never negative."""
    return math.log(1 + (max(total - frequency, 0) + 0.5) / (frequency + 0.5))


def _why(candidate: Candidate, terms: Sequence[Term]) -> str:
    """Name the words found, in the order of the question."""
    return " ".join(terms[index].text for index in sorted(candidate.matched) if terms[index].is_word)
