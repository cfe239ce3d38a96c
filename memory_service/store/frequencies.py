"""In how many events a word occurs; remembered for common words, since counting those takes time."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from memory_service.model import Term

_COMMON = 200
_GROWTH = 1.05
_MAX_REMEMBERED = 8_192


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
        known = {token: self._of_token(connection, token, total) for term in terms for token in term.tokens}
        return tuple(min(known[token] for token in term.tokens) for term in terms)

    def _of_token(self, connection: apsw.Connection, token: str, total: int) -> int:
        frequency, total_then = self._remembered.get(token, (0, 0))
        if total_then <= total <= total_then * _GROWTH:
            return frequency
        frequency = connection.execute("SELECT doc FROM event_vocabulary WHERE term = ?", (token,)).get or 0
        if frequency >= _COMMON:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[token] = (frequency, total)
        return frequency
