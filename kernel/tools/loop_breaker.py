"""Notices a model that goes round in circles."""

from __future__ import annotations

import hashlib
import json
from typing import Any

MOST_REPEATS = 3
LONGEST_CYCLE = 8
_REMEMBERED = MOST_REPEATS * LONGEST_CYCLE


class LoopBreaker:
    """Watches the calls of one turn.

    Two signs: the same call gave the same result three times, at whatever distance; or the last calls are a cycle of
    two to eight different ones that was gone through three times, whatever they returned. The same call three times in
    a row with *different* results is no sign: a queue is emptied that way.

    :param recent: digests of the turn's last (call, result) pairs, the newest last; kept up to date in place, so that a
        turn that goes on after a crash, or at another provider, still knows them
    """

    def __init__(self, recent: list[list[str]]) -> None:
        self._recent = recent

    def see(self, tool: str, arguments: Any, content: str) -> str | None:
        """Take in a finished call.

        :param arguments: as an object, or as the text that the model wrote
        :param content: what the model is told
        :returns: None, or what repeats itself, in words for the model: it must stop calling tools
        """
        self._recent.append([_digest(tool, _canonical(arguments)), _digest(content)])
        del self._recent[:-_REMEMBERED]
        if self._recent.count(self._recent[-1]) >= MOST_REPEATS:
            return f"{tool} was called {MOST_REPEATS} times with the same arguments and gave the same result each time"
        length = self._cycle()
        if length:
            return f"the last {length} calls were made {MOST_REPEATS} times over"
        return None

    def _cycle(self) -> int:
        """Return the length of the cycle that the last calls form, or 0."""
        calls = [call for call, _ in self._recent]
        for length in range(2, LONGEST_CYCLE + 1):
            last = calls[-length:]
            if len(set(last)) > 1 and calls[-length * MOST_REPEATS :] == last * MOST_REPEATS:
                return length
        return 0


def _canonical(arguments: Any) -> str:
    """Return a text that is the same for the same arguments, however they were spaced and ordered."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return str(arguments)
    return json.dumps(arguments, sort_keys=True, default=str)


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=12).hexdigest()
