"""A large table of bytes in a file, of which a few rows are needed at a time."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_COMPARED_ROWS = 8_192


class TableFile:
    """Gives rows like an array does, and holds none of them.

    Rows are read rather than mapped: the system maps 64 KB around each row that is touched, and soon the whole table.
    A row takes a microsecond.

    :param row_bytes: of one row
    """

    def __init__(self, path: Path, row_bytes: int) -> None:
        self._path = path
        self._row_bytes = row_bytes
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def of(cls, table: Bytes, path: Path) -> TableFile:
        """Return ``table`` as a file, which is written if it is not there or holds anything else.

        :param table: shape (rows, bytes of a row)
        :raises OSError: the file can be neither used nor written
        """
        if not _holds(path, table):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            try:
                table.tofile(partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        return cls(path, table.shape[1])

    def __getitem__(self, numbers: NDArray[np.int64]) -> Bytes:
        """Return the rows with these numbers, in their order.

        :raises OSError: the file has become shorter, or the disk fails
        """
        rows = np.empty((len(numbers), self._row_bytes), np.uint8)
        room, size = rows.reshape(-1).data, self._row_bytes
        for at, number in enumerate(numbers.tolist()):
            if os.preadv(self._descriptor, [room[at * size : (at + 1) * size]], number * size) != size:
                raise OSError(f"{self._path}: row {number} is missing")
        return rows


def _holds(path: Path, table: Bytes) -> bool:
    if not path.is_file() or path.stat().st_size != table.nbytes:
        return False
    with path.open("rb") as file:
        for start in range(0, len(table), _COMPARED_ROWS):
            part = table[start : start + _COMPARED_ROWS]
            if not np.array_equal(np.fromfile(file, np.uint8, part.size), part.reshape(-1)):
                return False
    return True
