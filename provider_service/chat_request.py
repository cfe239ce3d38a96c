"""The request of ``provider.chat``: checked once, then fitted to what each source understands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid
from provider_service.source import Source

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for one answer of a model.

    :ivar messages: as OpenAI shapes them
    :ivar model: a model's name, or ``auto``
    :ivar reason: what it is for (turn, merge, review …), for the ledger
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: Any = None
    temperature: float | None = None
    max_tokens: int | None = None
    model: str = "auto"
    reason: str = "turn"
    turn_id: str | None = None
    lane: str | None = None

    @property
    def has_images(self) -> bool:
        """Whether a message holds an image."""
        return any(part.get("type") == "image_url" for part in self._parts())

    @property
    def text(self) -> str:
        """All text in it, to estimate its tokens."""
        contents = [m["content"] for m in self.messages if isinstance(m.get("content"), str)]
        parts = [str(part.get("text", "")) for part in self._parts()]
        return "\n".join([*contents, *parts, json.dumps(self.tools, ensure_ascii=False) if self.tools else ""])

    def _parts(self) -> Iterator[dict[str, Any]]:
        for message in self.messages:
            if isinstance(message.get("content"), list):
                yield from (part for part in message["content"] if isinstance(part, dict))

    def for_source(self, source: Source) -> dict[str, Any]:
        """Return the unified request as the source's adapter gets it."""
        messages = self.messages
        if self.has_images and not source.vision:
            messages = [_without_images(message) for message in messages]
        if not source.tools:
            messages = [_without_tools(message) for message in messages]
        request: dict[str, Any] = {
            "model": source.model,
            "messages": [_with_opaque(message, source.adapter) for message in messages],
            "stream": True,
            "disable_thinking": not source.thinking_enabled,
            "temperature": self.temperature,
            "max_tokens": min(filter(None, (self.max_tokens, source.max_tokens)), default=None),
        }
        if self.tools and source.tools:
            request["tools"] = self.tools
            request["tool_choice"] = self.tool_choice
        return {name: value for name, value in request.items() if value is not None}


def parse_chat(body: Any) -> ChatRequest:
    """Read the body of ``provider.chat``.

    :raises Invalid: it is malformed; ``field`` says where
    """
    request = body.get("request") if isinstance(body, dict) else None
    if not isinstance(request, dict):
        raise _wrong("request")
    model = request.get("model") or "auto"
    if not isinstance(model, str):
        raise _wrong("model")
    temperature, max_tokens = request.get("temperature"), request.get("max_tokens")
    if temperature is not None and not _is_number(temperature):
        raise _wrong("temperature")
    if max_tokens is not None and (not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1):
        raise _wrong("max_tokens")
    return ChatRequest(
        messages=_checked_messages(request.get("messages")),
        tools=_checked_tools(request.get("tools")),
        tool_choice=request.get("tool_choice"),
        temperature=temperature,
        max_tokens=max_tokens,
        model=model,
        reason=str(body.get("reason") or "turn")[:64],
        turn_id=_short(body.get("turn_id")),
        lane=_lane(body.get("lane")),
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100


def _checked_messages(messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages")
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else 0
        if not isinstance(content, str | list | None) or message.get("role") not in ROLES:
            raise _wrong(f"messages[{index}]")
    return messages


def _checked_tools(tools: Any) -> list[dict[str, Any]]:
    for index, tool in enumerate(tools or []):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
            raise _wrong(f"tools[{index}]")
    return list(tools or [])


def _wrong(field_name: str) -> Invalid:
    return Invalid(text("provider.bad_request", field=field_name), field=field_name)


def _short(value: Any) -> str | None:
    return None if value is None else str(value)[:200]


def _lane(lane: Any) -> str | None:
    if isinstance(lane, dict):
        return f"{lane.get('channel', '')}/{lane.get('conversation', '')}"[:200]
    return _short("/".join(map(str, lane)) if isinstance(lane, list) else lane)


def _without_images(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    note = {"type": "text", "text": text("provider.image_left_out", "en")}
    parts = [note if isinstance(part, dict) and part.get("type") == "image_url" else part for part in content]
    return {**message, "content": parts}


def _without_tools(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": message.get("content") or ""}
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": kept.get("content") or ""}


def _with_opaque(message: dict[str, Any], adapter: str) -> dict[str, Any]:
    """Give back what only the adapter that made it understands, and to that one alone."""
    opaque = message.get("opaque")
    kept = {name: value for name, value in message.items() if name != "opaque"}
    if not isinstance(opaque, dict) or opaque.get("adapter") != adapter:
        return kept
    try:
        fields = json.loads(opaque["json"])
    except (KeyError, TypeError, ValueError) as error:
        raise _wrong("opaque") from error
    if not isinstance(fields, dict):
        raise _wrong("opaque")
    return {**kept, "opaque": fields}
