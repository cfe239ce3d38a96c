"""A table in a file gives the rows that the array would, whatever lay there before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memory_service.encoders.table_file import Bytes, TableFile

TABLE: Bytes = np.random.default_rng(5).integers(0, 256, (20_000, 16), dtype=np.uint8)


def test_rows_are_those_of_the_array_in_the_order_asked_for(tmp_path: Path) -> None:
    file = TableFile.of(TABLE, tmp_path / "cache" / "table")
    for numbers in ([], [0], [19_999, 3, 3, 12_345]):
        wanted = np.array(numbers, np.int64)
        assert np.array_equal(file[wanted], TABLE[wanted])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["table"]


@pytest.mark.parametrize("row", [0, 10_000, 19_999])
def test_a_single_wrong_byte_has_the_file_written_anew(tmp_path: Path, row: int) -> None:
    path = tmp_path / "table"
    broken = TABLE.copy()
    broken[row, 7] ^= 1
    broken.tofile(path)
    assert np.array_equal(TableFile.of(TABLE, path)[np.array([row])], TABLE[[row]])
    assert path.read_bytes() == TABLE.tobytes()


@pytest.mark.parametrize("content", [b"", TABLE.tobytes()[:-1], TABLE.tobytes() + b"x"])
def test_a_file_of_another_size_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table"
    path.write_bytes(content)
    TableFile.of(TABLE, path)
    assert path.read_bytes() == TABLE.tobytes()


def test_a_sound_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "table"
    TableFile.of(TABLE, path)
    before = path.stat()
    TableFile.of(TABLE, path)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_that_became_shorter_is_an_error_and_no_row_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "table"
    file = TableFile.of(TABLE, path)
    with path.open("r+b") as opened:
        opened.truncate(100)
    with pytest.raises(OSError, match="row 5000 is missing"):
        file[np.array([5_000])]


def test_where_no_file_can_be_written_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        TableFile.of(TABLE, tmp_path / "file" / "table")
