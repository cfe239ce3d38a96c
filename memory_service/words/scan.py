"""Cuts text into pieces by script: runs of Chinese characters, words, and symbols such as numbers and paths.

Text is folded first (full width to half width, upper to lower case), so that ``ＡＢＣ１２３`` and ``abc123`` are one.
Script decides where a piece ends, so glued text such as ``修改youer服务端`` falls apart as a reader would have it.

Every character of a piece is one that FTS5's ``unicode61`` keeps as it is (see :mod:`.tokenizer`): the two in the range
of letters that it takes for spaces are none here, and the two that it folds are folded here too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from memory_service.words.stem import stem

_LETTERS = "0-9a-z\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u167f\u1681-\u180d\u180f-\u1fff"
_CHARACTERS = (
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
PIECES = re.compile(
    rf"(?P<characters>[{_CHARACTERS}]+)"
    rf"|(?P<letters>[{_LETTERS}]+(?:(?:://|[._@:/\\'’-]|(?<=\d),(?=\d{{3}}(?!\d)))[{_LETTERS}]+)*)"
)
"""A piece of a folded text: a run of characters, or a word or symbol."""

_JOINTS = re.compile(r"://|[._@:/\\,-]")
_DIGITS_OR_NOT = re.compile(r"\d+|\D+")
_VERSION = re.compile(r"v(?=\d)")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text in one script.

    :ivar text: folded
    :ivar is_characters: written without spaces between words (Chinese, Japanese, Korean)
    :ivar wholes: for a symbol (``192.168.1.77``, ``v2.3.1``, ``etc/hosts``, ``iphone15``): its spellings, uncut
    :ivar words: for everything but characters: the stemmed words, or the parts of the symbol, in order
    """

    text: str
    is_characters: bool
    wholes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def fold(text: str) -> str:
    """Return ``text`` in half width and lower case."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).lower().replace("ς", "σ").replace("\u0345", "ι")


def pieces(text: str) -> Iterator[Piece]:
    """Cut ``text`` into its pieces, in order; punctuation is left out."""
    for match in PIECES.finditer(fold(text)):
        found = match.group()
        yield Piece(found, True) if match["characters"] else word_or_symbol(found)


def word_or_symbol(text: str) -> Piece:
    """Cut a piece that is no run of characters, folded as it is."""
    bare = text.replace("’", "'").removesuffix("'s").replace("'", "")
    parts = [part for part in _JOINTS.split(bare) if part]
    if len(parts) == 1 and not any(map(str.isdigit, bare)):
        return Piece(bare, False, words=(stem(bare),))
    words = tuple(run if run.isdigit() else stem(run) for part in parts for run in _DIGITS_OR_NOT.findall(part))
    wholes = dict.fromkeys((bare, _VERSION.sub("", bare, count=1), bare.replace(",", "")))
    return Piece(bare, False, wholes=tuple(wholes), words=words)
