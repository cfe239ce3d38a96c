"""What a question asks for: its words without the empty ones, its symbols, and the days it names."""

from __future__ import annotations

from memory_service.model import Term
from memory_service.words.days import days
from memory_service.words.scan import Piece, fold, pieces
from memory_service.words.segmenter import Segmenter
from memory_service.words.stop_words import CHINESE, ENGLISH
from memory_service.words.tokenizer import pairs

MAX_TERMS = 400
"""So many terms of a question are considered; a pasted page asks for no more than its beginning does."""


def terms(text: str, segmenter: Segmenter) -> list[Term]:
    """Return the terms of a question, each once, in order of appearance; the dictionary is needed for Chinese only.

    A question of nothing but empty words (``who are you``) keeps those, since they are all there is to look for.
    """
    found: dict[tuple[str, ...], Term] = {}
    empty: dict[tuple[str, ...], Term] = {}
    folded = fold(text)
    for day in days(folded):
        written = folded[day.start : day.end].strip()
        found.setdefault((day.day,), Term(written, (day.day,), is_symbol=True))
    for piece in pieces(_without_days(folded)):
        for term, is_empty in _of_characters(piece.text, segmenter) if piece.is_characters else _of_letters(piece):
            (empty if is_empty else found).setdefault(term.tokens, term)
    return list((found or empty).values())[:MAX_TERMS]


def _without_days(folded: str) -> str:
    """Take the days out, so that the 5 of ``5月2日`` is not looked for everywhere."""
    for day in days(folded):
        folded = folded[: day.start] + " " * (day.end - day.start) + folded[day.end :]
    return folded


def _of_characters(run: str, segmenter: Segmenter) -> list[tuple[Term, bool]]:
    words = [(Term(word, tuple(pairs(word)) or (word,)), word in CHINESE) for word in segmenter.cut(run)]
    beside = [(Term(pair, (pair,), is_word=False), False) for pair in pairs(run) if not CHINESE.issuperset(pair)]
    return words + beside


def _of_letters(piece: Piece) -> list[tuple[Term, bool]]:
    if not piece.wholes:
        return [(Term(piece.text, piece.words), piece.text in ENGLISH)]
    whole = (Term(piece.text, piece.wholes[:1], is_symbol=True), False)
    parts = [
        (Term(word, (word,)), word in ENGLISH)
        for word in piece.words
        if not word.isdigit() and word != piece.text and len(word) > 1
    ]
    return [whole, *parts]
