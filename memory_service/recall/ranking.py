"""The order of the candidates, and whether the best of them is a record of what was asked at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from memory_service.model import Hit, Term
from memory_service.recall.candidates import Found, why

SYMBOL_BONUS = 2.0
"""How many times its rarity an exact number, version, path or day adds to the score of the event that has it."""

EXACT_BONUS = 1.0
"""What a rare exact symbol adds to the fused score: who asks for port 13010 wants that one, whatever else is near."""

MEANING_WEIGHT = 0.5
"""The share of meaning in the fused score; the rest is words. Not sensitive: 0.3 and 0.7 are within a point of it."""

ENOUGH_SHARE = 0.25
"""The share of the question's informative words, weighed by rarity, that makes an event a record of it."""

ENOUGH_RARE_WORDS = 2.5
"""Or so many words as rare as can be, for long questions, of which no single event has a quarter.

Both were chosen on questions whose answer is there (false alarms: CMRC and XQuAD 1 %, LoCoMo 2 %, MemoryBank 6 %) and
on questions to somebody else's memory (flagged: 52 to 97 %)."""

_TELLING_CHARACTERS = 4
_TELLING_SHARE = 0.01
_TELLING_EVENTS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and how common its words are.

    :ivar terms: its words and symbols
    :ivar frequencies: for each term, in how many events it occurs
    :ivar total: how many events there are
    :ivar enough_cosine: how near a meaning must be to count as a record; depends on the encoder
    """

    terms: Sequence[Term]
    frequencies: Sequence[int]
    total: int
    enough_cosine: float = 1.0

    def rarity(self, index: int) -> float:
        """Return the inverse document frequency of a term, in the form that is never negative."""
        return _rarity(self.frequencies[index], self.total)

    def is_telling(self, index: int) -> bool:
        """Whether a term is a symbol that so few events have that one of them must be meant."""
        term, frequency = self.terms[index], self.frequencies[index]
        long_enough = len(term.tokens[0]) >= _TELLING_CHARACTERS
        return term.is_symbol and long_enough and frequency <= max(_TELLING_EVENTS, self.total * _TELLING_SHARE)


def rank(question: Question, found: Sequence[Found]) -> list[Hit]:
    """Return the candidates as hits, best first; of equally good ones the newest first.

    Words and meaning are each brought to 0…1 over the candidates and added: that is better than adding ranks, by which
    a weak list drags a strong one (measured on LoCoMo, MADial and MemoryBank). Without meanings, words decide alone.
    """
    words = [_by_words(question, each) for each in found]
    if any(each.cosine is not None for each in found):
        meanings = _scaled([each.cosine or 0.0 for each in found])
        trust = (1 - MEANING_WEIGHT) * _trust_in_words(question, found)
        scores = [
            trust * word + MEANING_WEIGHT * meaning + _exact(question, each)
            for word, meaning, each in zip(_scaled(words), meanings, found, strict=True)
        ]
    else:
        scores = words
    hits = [
        replace(each.hit, score=score, why=why(each, question.terms, (each.cosine or 0.0) >= question.enough_cosine))
        for each, score in zip(found, scores, strict=True)
    ]
    return sorted(hits, key=lambda hit: (-hit.score, -hit.time))


def is_no_record(question: Question, found: Sequence[Found]) -> bool:
    """Whether no candidate has enough of the question in it to count as a record of it.

    A rare number, version, path or day that an event has is enough by itself, whatever else was asked of it; so is a
    meaning that is near enough. Otherwise words weigh by how rare they are, so that a hit on a name counts for more
    than one on ``weekend``; a word that no event has weighs most. Pairs of characters beside the words do not count.
    """
    if any((each.cosine or 0.0) >= question.enough_cosine for each in found):
        return False
    matched = frozenset[int]().union(*(each.matched for each in found))
    if any(question.is_telling(index) for index in matched):
        return False
    best, enough = _best_and_enough(question, found)
    return best == 0.0 or best < enough


def _best_and_enough(question: Question, found: Sequence[Found]) -> tuple[float, float]:
    """Return how much of the question's words the best candidate has, and how much makes it a record."""
    words = {index: question.rarity(index) for index, term in enumerate(question.terms) if term.is_word}
    best = max((sum(words.get(index, 0.0) for index in each.matched) for each in found), default=0.0)
    return best, min(ENOUGH_SHARE * sum(words.values()), ENOUGH_RARE_WORDS * _rarity(0, question.total))


def _trust_in_words(question: Question, found: Sequence[Found]) -> float:
    """Return 1.0, or less where even the best candidate has too little of the question: another language, say."""
    best, enough = _best_and_enough(question, found)
    return min(1.0, best / enough) if enough else 0.0


def _by_words(question: Question, found: Found) -> float:
    exact = sum(question.rarity(index) for index in found.matched if question.terms[index].is_symbol)
    return found.relevance + SYMBOL_BONUS * exact


def _exact(question: Question, found: Found) -> float:
    return EXACT_BONUS if any(question.is_telling(index) for index in found.matched) else 0.0


def _scaled(values: Sequence[float]) -> list[float]:
    """Bring values to 0…1; all equal ones become 0, since they say nothing."""
    least, most = min(values, default=0.0), max(values, default=0.0)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]


def _rarity(frequency: int, total: int) -> float:
    return math.log(1 + (max(total - frequency, 0) + 0.5) / (frequency + 0.5))
