"""The tokenizer that the word index of schema version 1 names: such a table cannot even be dropped without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw

NAME = "homeagent"


def register(connection: apsw.Connection) -> None:
    """Make the name known to a connection; nothing is indexed with it any more."""
    connection.register_fts5_tokenizer(NAME, _make)


def _make(connection: apsw.Connection, arguments: list[str]) -> Callable[..., Any]:
    def tokenize(text: bytes, reason: int, locale: str | None) -> Iterator[tuple[str, ...]]:
        yield from ((token,) for token in text.decode("utf-8", "replace").split())

    return tokenize
