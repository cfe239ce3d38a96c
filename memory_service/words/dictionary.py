"""jieba's dictionary in 6 MB that are mapped from a file, instead of 55 MB of Python objects built at each start."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import subprocess
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Self

from homeagent_sdk.process import child_environment

_MAGIC = b"HADICT01"
_HEAD = struct.Struct("<8sQQ16s")
_MOST_REMEMBERED = 4_096


class Dictionary:
    """How frequent each word is, and which texts are the beginning of a word (those have the frequency 0).

    Takes the place of the ``dict`` that jieba looks words up in. A word is found by a digest of 64 bits; that two of
    half a million share one has a chance of one in a hundred million. Any number of threads may look up.

    :ivar total: the sum of all frequencies
    """

    def __init__(self, mapped: mmap.mmap, count: int, total: int) -> None:
        view = memoryview(mapped)[_HEAD.size :]
        self._digests = view[: 8 * count].cast("Q")
        self._frequencies = view[8 * count : 12 * count].cast("I")
        self._remembered: dict[str, int | None] = {}
        self.total = total

    @classmethod
    def open(cls, path: Path, source: Path) -> Self:
        """Map the file made of a dictionary, or make it first, which takes about two seconds.

        :param path: the file; what is there and was made of something else, or was cut short, is replaced
        :param source: jieba's dictionary: lines of word, frequency and part of speech
        :raises OSError: one of them cannot be read or written, or it cannot be made of this source
        """
        digest = blake2b(source.read_bytes(), digest_size=16).digest()
        if not _is_made_of(path, digest):
            _make_apart(path, source)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _, count, total, _ = _HEAD.unpack_from(mapped)
        return cls(mapped, count, total)

    def get(self, word: str, default: int | None = None) -> int | None:
        """Return a word's frequency, 0 for the beginning of one, ``default`` for anything else."""
        try:
            found = self._remembered[word]
        except KeyError:
            found = self._look_up(word)
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[word] = found
        return default if found is None else found

    def __getitem__(self, word: str) -> int:
        found = self.get(word)
        if found is None:
            raise KeyError(word)
        return found

    def __contains__(self, word: str) -> bool:
        return self.get(word) is not None

    def __len__(self) -> int:
        return len(self._digests)

    def _look_up(self, word: str) -> int | None:
        wanted = _digest(word)
        at = bisect_left(self._digests, wanted)
        return self._frequencies[at] if at < len(self._digests) and self._digests[at] == wanted else None


def _digest(word: str) -> int:
    return int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _is_made_of(path: Path, digest: bytes) -> bool:
    try:
        with path.open("rb") as file:
            magic, count, _, made_of = _HEAD.unpack(file.read(_HEAD.size))
            return bool(magic == _MAGIC and made_of == digest and os.fstat(file.fileno()).st_size == _size(count))
    except (FileNotFoundError, struct.error):
        return False


def _size(count: int) -> int:
    return _HEAD.size + 12 * count


def _make_apart(path: Path, source: Path) -> None:
    """Make the file in another process: it takes seconds of Python and 150 MB, once."""
    command = [sys.executable, "-m", "memory_service.words.dictionary", str(path), str(source)]
    environment = child_environment(Path(__file__).parents[2])
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EIO, f"{path} cannot be made of {source}: {done.stderr.strip()[-500:]}")


def _make(path: Path, source: Path) -> None:
    frequencies: dict[str, int] = {}
    total = 0
    with source.open(encoding="utf-8") as lines:
        for word, frequency in _entries(lines):
            total += frequency
            frequencies[word] = frequency
            for end in range(1, len(word)):
                frequencies.setdefault(word[:end], 0)
    by_digest = {_digest(word): frequency for word, frequency in frequencies.items()}
    digests = array("Q", sorted(by_digest))
    partial = path.with_suffix(f".{os.getpid()}.partial")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with partial.open("wb") as file:
        file.write(_HEAD.pack(_MAGIC, len(digests), total, blake2b(source.read_bytes(), digest_size=16).digest()))
        digests.tofile(file)
        array("I", (by_digest[each] for each in digests)).tofile(file)
    partial.replace(path)


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        word, frequency = line.split(" ")[:2]
        yield word, int(frequency)


if __name__ == "__main__":
    os.umask(0o077)
    _make(Path(sys.argv[1]), Path(sys.argv[2]))
