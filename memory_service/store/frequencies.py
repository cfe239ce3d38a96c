"""In how many events a word occurs; remembered for common words, since counting those takes time."""

from __future__ import annotations

import json
from collections.abc import Sequence

import apsw

from memory_service.model import Term

_COMMON = 200
_GROWTH = 1.05
_MAX_REMEMBERED = 8_192
_COUNT = "SELECT term, doc FROM event_vocabulary WHERE term IN (SELECT value FROM json_each(?))"


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
        tokens = {token for term in terms for token in term.tokens}
        known = {token: frequency for token in tokens if (frequency := self._again(token, total)) is not None}
        known |= self._count(connection, tokens - known.keys(), total)
        return tuple(min(known.get(token, 0) for token in term.tokens) for term in terms)

    def _again(self, token: str, total: int) -> int | None:
        frequency, total_then = self._remembered.get(token, (0, -1))
        return frequency if total_then <= total <= total_then * _GROWTH else None

    def _count(self, connection: apsw.Connection, tokens: set[str], total: int) -> dict[str, int]:
        # All at once: each statement that opens the vocabulary prepares another one inside it.
        counted = dict(connection.execute(_COUNT, (json.dumps(sorted(tokens)),))) if tokens else {}
        for token, frequency in counted.items():
            if frequency >= _COMMON:
                if len(self._remembered) >= _MAX_REMEMBERED:
                    self._remembered.clear()
                self._remembered[token] = (frequency, total)
        return counted
