"""Puts the answer together from its pieces."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
STANDARD_ENDS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "end_turn"})
"""Finish reasons with which an empty answer is an answer."""


class _Text:
    """A text that grows; half of a surrogate pair at its end waits for the other half."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._held = ""

    def add(self, new: str) -> str:
        """Add ``new``; return what of it can be shown."""
        new = self._held + new
        self._held = ""
        if new and "\ud800" <= new[-1] <= "\udbff":
            new, self._held = new[:-1], new[-1]
        new = _whole_characters(new)
        if new:
            self.parts.append(new)
        return new

    def __str__(self) -> str:
        return "".join(self.parts) + ("�" if self._held else "")


def _whole_characters(text: str) -> str:
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Answer:
    """One answer, from the pieces that an adapter makes (see ``adapters/openai.lua``).

    :param adapter: the adapter's name; opaque fields go back to the same one only
    """

    def __init__(self, adapter: str) -> None:
        self.finish_reason: str | None = None
        self.has_pieces = False
        self._adapter = adapter
        self._content = _Text()
        self._reasoning = _Text()
        self._calls: list[dict[str, Any]] = []
        self._by_index: dict[int, dict[str, Any]] = {}
        self._opaque: dict[str, Any] = {}
        self._usage: dict[str, int] = {}

    @property
    def has_content(self) -> bool:
        """Whether there is text that a person has seen."""
        return bool(self._content.parts)

    @property
    def is_empty(self) -> bool:
        """Whether there is neither text nor a tool call, and no end that would make that an answer."""
        return not (self.has_content or self._calls or self.finish_reason in STANDARD_ENDS)

    @property
    def has_usage(self) -> bool:
        """Whether the source told the tokens."""
        return bool(self._usage)

    def add(self, piece: dict[str, Any]) -> tuple[str, str]:
        """Take in a piece; return the text and the reasoning that are new."""
        content, reasoning = piece.get("content"), piece.get("reasoning")
        shown = self._content.add(content) if isinstance(content, str) else ""
        thought = self._reasoning.add(reasoning) if isinstance(reasoning, str) else ""
        for call in _dicts(piece.get("tool_calls")):
            self._add_call(call)
        if isinstance(piece.get("opaque"), dict):
            self._add_opaque(piece["opaque"])
        if isinstance(piece.get("usage"), dict):
            self._add_usage(piece["usage"])
        if isinstance(piece.get("finish_reason"), str) and piece["finish_reason"]:
            self.finish_reason = piece["finish_reason"]
        return shown, thought

    def message(self, *, with_calls: bool = True) -> dict[str, Any]:
        """Return the message; without its tool calls if it was cut off, since cut-off JSON must never run."""
        calls = [_finished_call(call) for call in self._calls if call["name"]] if with_calls else []
        opaque = {"adapter": self._adapter, "json": json.dumps(self._opaque)} if self._opaque else None
        return {"content": str(self._content), "reasoning": str(self._reasoning), "tool_calls": calls, "opaque": opaque}

    def usage(self, prompt_characters: str) -> dict[str, Any]:
        """Return the tokens used, estimated where the source did not tell (``reported`` is false then).

        :param prompt_characters: the text of the request
        """
        if self._usage:
            counts = {name: self._usage.get(name, 0) for name in _COUNTS}
        else:
            written = "".join(call["name"] + str(call["arguments"]) for call in self._calls)
            reasoning = estimate_tokens(str(self._reasoning))
            completion = estimate_tokens(str(self._content) + written) + reasoning
            counts = dict.fromkeys(_COUNTS, 0)
            counts.update(prompt_tokens=estimate_tokens(prompt_characters), completion_tokens=completion)
            counts["reasoning_tokens"] = reasoning
        counts["total_tokens"] = max(counts["total_tokens"], counts["prompt_tokens"] + counts["completion_tokens"])
        return {**counts, "reported": bool(self._usage)}

    def _add_call(self, part: dict[str, Any]) -> None:
        index, call_id, name = part.get("index"), part.get("id"), part.get("name")
        call = self._call_of(index, call_id, name)
        if isinstance(call_id, str) and call_id:
            call["id"] = call_id
        if isinstance(name, str) and name and not call["name"]:
            call["name"] = name
        arguments = part.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, str):
            call["arguments"].append(arguments)

    def _call_of(self, index: Any, call_id: Any, name: Any) -> dict[str, Any]:
        """Return the call that a fragment belongs to.

        Most servers tell by index; some repeat the id in each fragment, and some give every call index 0 with an id of
        its own.
        """
        known = self._by_index.get(index) if isinstance(index, int) else None
        if known is None and not isinstance(index, int) and self._calls:
            same = [call for call in self._calls if call_id and call["id"] == call_id]
            known = same[0] if same else (None if name else self._calls[-1])
        if known is not None and (not call_id or not known["id"] or known["id"] == call_id):
            return known
        call: dict[str, Any] = {"id": "", "name": "", "arguments": []}
        self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call

    def _add_opaque(self, new: dict[str, Any]) -> None:
        for name, value in new.items():
            old = self._opaque.get(name)
            grows = isinstance(value, list | str) and type(old) is type(value)
            self._opaque[name] = old + value if grows else value

    def _add_usage(self, told: dict[str, Any]) -> None:
        for name in _COUNTS:
            value = told.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
                self._usage[name] = int(value)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [inner for inner in value if isinstance(inner, dict)] if isinstance(value, list) else []


def _finished_call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = _whole_characters("".join(call["arguments"])) or "{}"
    return {"id": call["id"] or f"call_{uuid.uuid4().hex[:16]}", "name": call["name"], "arguments": arguments}


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a token for each Chinese, Japanese or Korean character, else four letters each."""
    narrow = len(text.encode("ascii", "ignore"))
    wide = len(text) - narrow
    return math.ceil(narrow / 4 + wide * 0.8)
