"""In how many events a word occurs; remembered for common words, since counting those takes time."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

import apsw

from memory_service.model import Term

_COMMON = 200
_GROWTH = 1.05
_MAX_REMEMBERED = 8_192
_MOST_ASKED = 96
_MOST_ROWS = 1_500
"""So many rows at most of an index are ranked for a question, however large the memory: about 4 µs each."""


class Frequencies:
    """Counts the events that have a token, for any number of threads at once.

    The count of a common token is used again until the memory has grown by a twentieth: it need not be exact to say
    that the token is common. Rare ones are counted anew each time, which costs next to nothing.
    """

    def __init__(self) -> None:
        self._remembered: dict[str, tuple[int, int]] = {}

    def of(self, connection: apsw.Connection, terms: Sequence[Term], total: int) -> tuple[int, ...]:
        """Return for each term in about how many events it occurs; for one of several tokens, that of its rarest.

        :param total: how many events there are
        """
        tokens = _tokens(terms)
        known = {token: frequency for token in tokens if (frequency := self._again(token, total)) is not None}
        known |= self._count(connection, tokens - known.keys(), total)
        return _of_rarest(terms, known)

    def _again(self, token: str, total: int) -> int | None:
        frequency, total_then = self._remembered.get(token, (0, -1))
        return frequency if total_then <= total <= total_then * _GROWTH else None

    def _count(self, connection: apsw.Connection, tokens: set[str], total: int) -> dict[str, int]:
        counted = _counted(connection, "event_vocabulary", tokens)
        for token, frequency in counted.items():
            if frequency >= _COMMON:
                if len(self._remembered) >= _MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[token] = (frequency, total)
        return counted


def frequencies_in(connection: apsw.Connection, vocabulary: str, terms: Sequence[Term]) -> tuple[int, ...]:
    """Return for each term in how many rows it occurs; for one of several tokens, that of its rarest.

    :param vocabulary: the table of an index's words, such as ``relation_vocabulary``; it still names the words of a
        deleted row until the index is merged, so a count may be too high
    """
    return _of_rarest(terms, _counted(connection, vocabulary, _tokens(terms)))


def worth_asking(frequencies: Sequence[int], most_rows: int = _MOST_ROWS) -> list[int]:
    """Return which terms to look up: the rarest first, as long as not too many rows have them.

    The common ones say little and take most of the time; one is asked for if there is nothing rarer.
    """
    asked: list[int] = []
    rows = 0
    for index in sorted((i for i, frequency in enumerate(frequencies) if frequency), key=frequencies.__getitem__):
        rows += frequencies[index]
        if asked and (rows > most_rows or len(asked) == _MOST_ASKED):
            break
        asked.append(index)
    return asked


def _tokens(terms: Sequence[Term]) -> set[str]:
    return {token for term in terms for token in term.tokens}


def _counted(connection: apsw.Connection, vocabulary: str, tokens: Collection[str]) -> dict[str, int]:
    # All at once: each statement that opens a vocabulary prepares another one inside it.
    question = f"SELECT term, doc FROM {vocabulary} WHERE term IN (SELECT value FROM json_each(?))"
    return dict(connection.execute(question, (json.dumps(sorted(tokens)),))) if tokens else {}


def _of_rarest(terms: Sequence[Term], counted: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(min(counted.get(token, 0) for token in term.tokens) for term in terms)
