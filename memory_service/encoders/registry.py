"""Encoders by name, and what happens when the one that was asked for cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from memory_service.encoders.abc import Encoder
from memory_service.encoders.hashing import HashingEncoder
from memory_service.encoders.use import UseEncoder

DEFAULT = "use"
FALLBACK = "tfidf"

ENCODERS: Mapping[str, Callable[[Path], Encoder]] = {
    "use": UseEncoder,
    "tfidf": lambda cache_dir: HashingEncoder(),
}
"""What makes each encoder, given a folder in which it may keep files."""


def load(name: str, cache_dir: Path) -> tuple[Encoder, str]:
    """Return an encoder, or the fallback and the reason why it had to be that one.

    :returns: the encoder, and an empty text or the reason
    """
    make = ENCODERS.get(name)
    if make is None:
        return HashingEncoder(), f"there is no encoder {name}; there are {', '.join(sorted(ENCODERS))}"
    try:
        return make(cache_dir), ""
    except (ImportError, OSError, ValueError, KeyError, AttributeError) as error:
        # Whatever is wrong with a package or its weights: recall by words and the fallback go on.
        return HashingEncoder(), f"the encoder {name} cannot be loaded: {type(error).__name__}: {error}"
