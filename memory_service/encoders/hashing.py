"""The encoder that always works: words and pairs of characters, hashed into a fixed number of places.

Needs no weights and no fitting, so its vectors stay comparable for ever. It knows no synonyms: it finds what shares
words or characters with the question.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from memory_service.encoders.abc import MAX_CHARACTERS, Space, Vectors
from memory_service.words.scan import pieces
from memory_service.words.stop_words import CHINESE, ENGLISH

_DIMENSIONS = 512


class HashingEncoder:
    """Implements :class:`memory_service.encoders.abc.Encoder` by signed feature hashing.

    A feature weighs the logarithm of its frequency; empty words are left out, which is the part of the inverse
    document frequency that can be known without the documents.
    """

    def __init__(self) -> None:
        self._space = Space("tfidf", f"hashing:1:{_DIMENSIONS}:{MAX_CHARACTERS}", _DIMENSIONS)

    @property
    def space(self) -> Space:
        """The space of its vectors."""
        return self._space

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode; see :class:`memory_service.encoders.abc.Encoder`."""
        vectors = np.zeros((len(texts), _DIMENSIONS), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for feature, count in Counter(_features(text[:MAX_CHARACTERS])).items():
                digest = blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest()
                place = int.from_bytes(digest[:4], "little") % _DIMENSIONS
                vector[place] += (1 + math.log(count)) * (1 if digest[4] & 1 else -1)
            length = float(np.linalg.norm(vector))
            if length:
                vector /= length
        return vectors


def _features(text: str) -> list[str]:
    """Return words and pairs of characters; of a text of nothing but empty words, those."""
    found: list[str] = []
    empty: list[str] = []
    for piece in pieces(text):
        if piece.is_characters:
            found += [piece.text[at : at + 2] for at in range(len(piece.text) - 1)]
            for character in piece.text:
                (empty if character in CHINESE else found).append(character)
        else:
            for word in (*piece.wholes, *piece.words):
                (empty if word in ENGLISH else found).append(word)
    return found or empty
