"""How many tokens a text costs: an estimate by kind of character, corrected by what each source reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_CJK = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_CJK_PER_TOKEN = 1.4
_OTHER_PER_TOKEN = 3.8
_MESSAGE_TOKENS = 4
_SMOOTHING = 0.2
_LEAST, _MOST = 0.5, 2.5


def estimate_tokens(text: str) -> int:
    """Estimate a text. Counting CJK apart matters: by bytes, Chinese came out threefold (reference lesson 22)."""
    if not text:
        return 0
    cjk = 0 if text.isascii() else len(_CJK.findall(text))
    return int(cjk / _CJK_PER_TOKEN + (len(text) - cjk) / _OTHER_PER_TOKEN) + 1


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
