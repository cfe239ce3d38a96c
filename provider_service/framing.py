"""Cuts the body of an answer into its JSON texts, whatever the server calls it: SSE, JSON lines or one document."""

from __future__ import annotations

from typing import Protocol

from provider_service.errors import CallFailed, Fault

MAX_EVENT_BYTES = 16 * 1024 * 1024
_SSE_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LINE_TYPES = ("ndjson", "jsonl", "json-seq", "x-json-stream")


class Framing(Protocol):
    """What cuts one body; fed with pieces of it as they come."""

    is_done: bool
    """The body said that it is complete, whatever may follow."""
    is_whole: bool
    """The body is one document: its text is what :meth:`end` returns, and no stream."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the texts that ``data`` completes."""

    def end(self) -> list[bytes]:
        """Return what is left at the end of the body."""


class SseFraming:
    """Server-sent events: all line ends, comments, data of several lines; bytes, so that no character is cut."""

    is_whole = False

    def __init__(self) -> None:
        self.is_done = False
        self._tail = b""
        self._data: list[bytes] = []
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are complete now."""
        text = self._tail + data
        if self._is_first and text:
            text = text.removeprefix(b"\xef\xbb\xbf")
            self._is_first = False
        # A carriage return at the end may be half of a line end.
        held = b"\r" if text.endswith(b"\r") else b""
        lines = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._tail = lines.pop() + held
        _check_size(len(self._tail))
        events = []
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                events.append(self._flush())
        return [event for event in events if self._counts(event)]

    def end(self) -> list[bytes]:
        """Return the last event, if the blank line after it is missing."""
        tail, self._tail = self._tail.rstrip(b"\r"), b""
        if tail:
            self._take(tail)
        return [event for event in ([self._flush()] if self._data else []) if self._counts(event)]

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)

    def _flush(self) -> bytes:
        event, self._data = b"\n".join(self._data), []
        return event

    def _counts(self, event: bytes) -> bool:
        if event.strip() == b"[DONE]":
            self.is_done = True
        return not self.is_done and bool(event.strip())


class LineFraming:
    """One JSON text a line."""

    is_whole = False
    is_done = False

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now."""
        *lines, self._tail = (self._tail + data).split(b"\n")
        _check_size(len(self._tail))
        return [line for line in lines if line.strip()]

    def end(self) -> list[bytes]:
        """Return the last line, if its end is missing."""
        tail, self._tail = self._tail, b""
        return [tail] if tail.strip() else []


class WholeFraming:
    """One document."""

    is_whole = True
    is_done = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """Keep ``data``."""
        self._parts.append(data)
        return []

    def end(self) -> list[bytes]:
        """Return the document."""
        return [b"".join(self._parts)]


def choose_framing(content_type: str, first: bytes) -> Framing:
    """Tell by its first bytes, and by its type where they leave a choice, how a body is cut.

    Servers answer a request to stream with one document, and the other way round, and get the type wrong.
    """
    start = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith((b"{", b"[")):
        return LineFraming() if any(name in content_type for name in _LINE_TYPES) else WholeFraming()
    if start.startswith(_SSE_FIELDS) or "event-stream" in content_type:
        return SseFraming()
    if any(field.startswith(start[:8]) for field in _SSE_FIELDS):
        return SseFraming()
    return WholeFraming()


def _check_size(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise CallFailed(Fault.OTHER, f"one event of the stream is larger than {MAX_EVENT_BYTES} bytes")
