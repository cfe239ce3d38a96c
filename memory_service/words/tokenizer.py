"""The FTS5 tokenizer: how a stored text is written into the index.

Every character of a Chinese run takes one place in the index, where both it and its pair with the next character
stand. A word of a question then becomes the pairs that it consists of, one after another: ``静安寺`` is ``静安``
and then ``安寺``. So a name of one or two characters is found like any other word, wherever a segmenter would have
cut the sentence; storing needs no dictionary (18 times faster than cutting with jieba, with the same recall); and
another segmenter changes questions only, never the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw

from memory_service.words.scan import pieces

NAME = "homeagent"


def register(connection: apsw.Connection) -> None:
    """Make the tokenizer known to a connection; must happen before its first use of a table with words."""
    connection.register_fts5_tokenizer(NAME, _make)


def places(text: str) -> Iterator[tuple[str, ...]]:
    """Give the tokens of a stored text, place by place."""
    for piece in pieces(text):
        if piece.is_characters:
            yield from zip(piece.text, pairs(piece.text), strict=False)
            yield (piece.text[-1],)
        elif piece.wholes:
            yield tuple(dict.fromkeys((*piece.wholes, piece.words[0])))
            for word in piece.words[1:]:
                yield (word,)
        else:
            yield piece.words


def pairs(characters: str) -> Iterator[str]:
    """Give each character of a run with the one after it."""
    for index in range(len(characters) - 1):
        yield characters[index : index + 2]


def match_phrase(tokens: tuple[str, ...]) -> str:
    """Write tokens of a question, as :mod:`.question` made them, as a phrase of FTS5's query language."""
    return '"' + " ".join(tokens).replace('"', '""') + '"'


def _make(connection: apsw.Connection, arguments: list[str]) -> Callable[..., Any]:
    def tokenize(text: bytes, reason: int, locale: str | None) -> Iterator[tuple[str, ...]]:
        decoded = text.decode("utf-8", "replace")
        if reason & apsw.FTS5_TOKENIZE_QUERY:
            # Questions are cut by words/question.py, with the dictionary; what comes here is tokens already.
            for token in decoded.split(" "):
                yield (token,)
        else:
            yield from places(decoded)

    return tokenize
