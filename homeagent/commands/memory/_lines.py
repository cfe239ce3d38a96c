"""Files of JSON lines: read twice, first to check them, in constant memory."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from homeagent_sdk.catalogue import text

MOST_SHOWN = 20
_BLOCK_LINES = 2_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a line.

    :ivar field: the field at fault, empty if the line is no object at all
    """

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = text("command.memory_line", line=self.line)
        return f"{where}, {self.field}: {self.message}" if self.field else f"{where}: {self.message}"


class BadField(Exception):
    """Raised by a parser of lines: a field is missing or wrong.

    :param name: the field, empty for the whole line
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message


Parse = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes of a line's fields what is wanted, or raises :class:`BadField`."""


@dataclass(slots=True)
class Checked:
    """What a first reading found.

    :ivar complaints: of the first bad lines
    :ivar bad: how many bad lines there are
    """

    lines: int = 0
    bad: int = 0
    complaints: list[Complaint] = field(default_factory=list)

    def complain(self, complaint: Complaint) -> None:
        """Count a bad line, and keep what is wrong with it if there were not too many before."""
        self.bad += 1
        if len(self.complaints) < MOST_SHOWN:
            self.complaints.append(complaint)


class Lines:
    """An open file of JSON lines. All methods block: call them in a thread.

    :ivar size: bytes of the file
    """

    def __init__(self, file: BinaryIO, parse: Parse) -> None:
        self._file = file
        self._parse = parse
        self.size = file.seek(0, 2)
        file.seek(0)

    def check(self, advance: Callable[[int], None]) -> Checked:
        """Read everything once.

        :param advance: told from time to time how many bytes were read
        """
        found = Checked()
        for number, line in self._lines():
            found.lines += 1
            if isinstance(parsed := self._parsed(number, line), Complaint):
                found.complain(parsed)
            if number % _BLOCK_LINES == 0:
                advance(self._file.tell())
        return found

    def batches(self, most: int, most_bytes: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield what the good lines say, so many at a time, with how many bytes were read.

        A batch is closed before it would have more than ``most_bytes``, unless a single line has.
        """
        batch: list[dict[str, Any]] = []
        size = position = 0
        for number, line in self._lines():
            parsed = self._parsed(number, line)
            if not isinstance(parsed, Complaint):
                if batch and (len(batch) == most or size + len(line) > most_bytes):
                    yield batch, position
                    batch, size = [], 0
                batch.append(parsed)
                size += len(line)
            position = self._file.tell()
        yield batch, position

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not empty, with their numbers."""
        self._file.seek(0)
        number = 0
        # Not the file's own iterator, which reads ahead so that nobody knows where it is.
        while line := self._file.readline():
            number += 1
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line := line.strip():
                yield number, line

    def _parsed(self, number: int, line: bytes) -> dict[str, Any] | Complaint:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Complaint(number, "", text("command.memory_no_json", reason=error))
        if not isinstance(fields, dict):
            return Complaint(number, "", text("command.memory_no_object"))
        try:
            return self._parse(fields)
        except BadField as bad:
            return Complaint(number, bad.name, bad.message)


@contextmanager
def open_lines(path: Path, parse: Parse) -> Iterator[Lines]:
    """Open a file; ``-`` is standard input, which is first copied to a temporary file that has no name."""
    with _standard_input() if str(path) == "-" else path.open("rb") as source:
        if source.seekable():
            yield Lines(source, parse)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy)
            yield Lines(copy, parse)


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def text_of(fields: dict[str, Any], name: str, *, is_needed: bool = True, most: int | None = None) -> str:
    """Return a text field; one that is not needed may be missing or null, and is then empty.

    :raises BadField: it is missing, no text, empty though needed to be something, or too long
    """
    value = fields.get(name)
    if value is None and not is_needed:
        return ""
    if not isinstance(value, str):
        raise BadField(name, text("command.memory_missing" if value is None else "command.memory_no_text"))
    if most is not None and not 0 < len(value) <= most:
        raise BadField(name, text("command.memory_length", most=most))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadField(name, text("command.memory_no_unicode")) from None
    return value
