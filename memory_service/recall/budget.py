"""How much of the prompt the hits may take."""

from __future__ import annotations

from collections.abc import Iterable

from memory_service.model import Hit, estimated_tokens

_EVENT_OVERHEAD_TOKENS = 16
"""What the prompt puts around an event: its time, its speaker, its id."""


def within(hits: Iterable[Hit], limit: int, budget_tokens: int) -> tuple[list[Hit], int]:
    """Return the first ``limit`` hits that fit, and how many of those were left out because they do not.

    An event is given whole or not at all, so one that is too large makes room for the next.
    """
    kept: list[Hit] = []
    omitted, left = 0, budget_tokens
    for hit in hits:
        if len(kept) == limit:
            break
        cost = _cost(hit)
        if cost <= left:
            kept.append(hit)
            left -= cost
        elif len(kept) + omitted < limit:
            omitted += 1
    return kept, omitted


def _cost(hit: Hit) -> int:
    return _EVENT_OVERHEAD_TOKENS + estimated_tokens(hit.text) + estimated_tokens(hit.reply)
