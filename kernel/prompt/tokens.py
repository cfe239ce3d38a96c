"""How many tokens a text costs: an estimate by kind of character, corrected by what each source reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_WIDE_PER_TOKEN = 1.4
_OTHER_PER_TOKEN = 3.8
_MESSAGE_TOKENS = 4
_SMOOTHING = 0.2
_LEAST, _MOST = 0.5, 2.5


def estimate_tokens(text: str) -> int:
    """Estimate a text. Counting CJK apart matters: by bytes alone, Chinese came out threefold (reference lesson 22).

    A character of three bytes in UTF-8 counts as CJK, one of two (Cyrillic, accents) as half of one. The length of the
    encoded text tells that, in a millisecond where looking at each character of a long text took a hundred.
    """
    if not text:
        return 0
    wide = 0.0 if text.isascii() else (len(text.encode("utf-8", "surrogatepass")) - len(text)) / 2
    return int(wide / _WIDE_PER_TOKEN + max(0.0, len(text) - wide) / _OTHER_PER_TOKEN) + 1


def estimate_messages(messages: Iterable[Mapping[str, Any]]) -> int:
    """Estimate messages of a request, their tool calls included."""
    total = 0
    for message in messages:
        total += _MESSAGE_TOKENS + estimate_tokens(str(message.get("content") or ""))
        for call in message.get("tool_calls") or ():
            total += _MESSAGE_TOKENS + estimate_tokens(str(call.get("function", call)))
    return total


class TokenCorrection:
    """Learns, per source, by how much the estimate is off; bounded, so that one odd report cannot mislead it."""

    def __init__(self) -> None:
        self._factors: dict[str, float] = {}

    def factor(self, source: str) -> float:
        """Return by what an estimate must be multiplied for this source."""
        return self._factors.get(source, 1.0)

    def learn(self, source: str, estimated: int, reported: int) -> None:
        """Take in what a call really cost."""
        if estimated < 50 or reported <= 0:
            return
        ratio = min(max(reported / estimated, _LEAST), _MOST)
        self._factors[source] = self.factor(source) * (1 - _SMOOTHING) + ratio * _SMOOTHING
