"""How scenes are named, and when a situation is one that was seen before. The numbers are those of the design."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from memory_service.words.scan import fold

MAX_KEY_CHARACTERS = 96
MAX_FEATURES = 24

WEIGHTS: Mapping[str, float] = {"chan": 1.0, "peer": 1.0, "group": 1.0, "tool": 0.8, "topic": 0.4, "part": 0.2}
"""What a feature counts, by its kind: channel, who spoke or in which group, tool, topic, part of day."""

OTHER_WEIGHT = 0.4
FOUNDING = 2
"""So often a situation must occur to become a scene."""

JOIN = 0.5
"""So similar a situation must be to a scene to belong to it, and :data:`EVOKE` to bring it to mind."""

EVOKE = 0.35
HALF_LIFE_S = 30 * 86_400.0
FLOOR = 0.05
"""What weighs less is let go."""

_STRONG = 0.5
_NOT_ALLOWED = re.compile(r"[^\w:.-]")


def key_of(text: str) -> str:
    """Return a scene's key in its one spelling: lower case, layers parted by ``/``, ``_`` for what is not allowed."""
    layers = (_NOT_ALLOWED.sub("_", layer.strip()) for layer in fold(text).split("/"))
    return "/".join(layer for layer in layers if layer)


def problem_with_key(text: str) -> str | None:
    """Say why a text cannot be the key of a scene; None if it can."""
    key = key_of(text)
    if not any(character.isalnum() for character in key):
        return "has neither a letter nor a digit"
    if len(key) > MAX_KEY_CHARACTERS:
        return f"has {len(key)} characters, at most {MAX_KEY_CHARACTERS} are allowed"
    return None


def weight_of(feature: str) -> float:
    """Return what a feature such as ``chan:qq`` counts."""
    return WEIGHTS.get(feature.partition(":")[0], OTHER_WEIGHT)


def fingerprint(features: Iterable[str]) -> dict[str, float]:
    """Return the features of a situation with what they count: the weightiest, if there are too many."""
    weighed = {key: weight_of(key) for key in map(key_of, features) if key}
    chosen = sorted(weighed, key=lambda key: (-weighed[key], key))[:MAX_FEATURES]
    return {key: weighed[key] for key in chosen}


def similarity(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return how similar two sets of features are, 0…1: what they share of what they have, by weight."""
    keys = one.keys() | other.keys()
    most = sum(max(one.get(key, 0.0), other.get(key, 0.0)) for key in keys)
    return sum(min(one.get(key, 0.0), other.get(key, 0.0)) for key in keys) / most if most else 0.0


def label_of(features: Mapping[str, float]) -> str | None:
    """Return what a situation is counted under until it is a scene; None if nothing in it is telling."""
    strong = sorted((key for key in features if features[key] >= _STRONG), key=lambda key: (-features[key], key))
    return "+".join(strong[:2]) or None
