"""The answers of the OpenAI-compatible API: one object, or a stream of chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

_FINISH_REASONS = ("stop", "length", "content_filter")
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


def usage_of(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of a turn as OpenAI counts them."""
    reported = outcome.get("usage") or {}
    counted: dict[str, Any] = {key: int(reported.get(key) or 0) for key in _USAGE}
    return {**counted, "prompt_tokens_details": {"cached_tokens": int(reported.get("cached_tokens") or 0)}}


def finish_reason_of(outcome: Mapping[str, Any]) -> str:
    """Return why the answer ended; the agent's tool calls are done when it comes, so they are no reason."""
    reason = outcome.get("finish_reason")
    return str(reason) if reason in _FINISH_REASONS else "stop"


class ChatAnswer:
    """Makes the objects that answer one request.

    Beside OpenAI's members they have ``homeagent``: ``turn_id``, ``conversation`` (to go on with, as
    ``metadata.conversation``), and at the end ``outcome`` and the ``model`` that answered.

    :param model: as the client called it
    """

    def __init__(self, turn_id: str, model: str, conversation: str, include_usage: bool) -> None:
        self._base = {"id": f"chatcmpl-{turn_id}", "created": int(time.time()), "model": model}
        self._turn = {"turn_id": turn_id, "conversation": conversation}
        self._include_usage = include_usage

    def whole(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request without ``stream``."""
        message = {"role": "assistant", "content": outcome.get("text") or "", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason_of(outcome)}
        return {
            **self._base,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage_of(outcome),
            "homeagent": self._ending(outcome),
        }

    def opening(self) -> bytes:
        """Return the first chunk, which has no text."""
        return self._chunk({"role": "assistant", "content": ""}, None, {"homeagent": self._turn})

    def more(self, text: str) -> bytes:
        """Return a chunk with text."""
        return self._chunk({"content": text}, None, {})

    def ending(self, outcome: Mapping[str, Any]) -> bytes:
        """Return what follows the text: the last chunk, the usage if it was asked for, and the end mark."""
        last = self._chunk({}, finish_reason_of(outcome), {"homeagent": self._ending(outcome)})
        if self._include_usage:
            usage = {"choices": [], "usage": usage_of(outcome)}
            last += _event({**self._base, "object": "chat.completion.chunk", **usage})
        return last + END

    def _ending(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._turn, "outcome": outcome.get("outcome"), "model": outcome.get("model")}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None, more: dict[str, Any]) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._base, "object": "chat.completion.chunk", "choices": [choice], **more}
        return _event({**chunk, "usage": None} if self._include_usage else chunk)


def failure(body: Mapping[str, Any]) -> bytes:
    """Return what ends a stream whose headers are sent already: the error, and the end mark."""
    return _event(body) + END


END = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
