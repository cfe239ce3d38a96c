"""What someone may have meant who named a setting that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3


def nearest(key: str, known: Iterable[str]) -> list[str]:
    """Return up to three known keys that look like ``key``, or that end as it does, the likeliest first."""
    candidates = list(known)
    last = key.rpartition(".")[2]
    same_end = [candidate for candidate in candidates if candidate.rpartition(".")[2] == last]
    similar = difflib.get_close_matches(key, candidates, n=_MOST, cutoff=0.6)
    by_end = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
    similar_end = [by_end[end] for end in difflib.get_close_matches(last, by_end, n=_MOST, cutoff=0.75)]
    return list(dict.fromkeys([*same_end, *similar, *similar_end]))[:_MOST]
