"""What the scripted far end is asked and answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_CALL = re.compile(r"call tool ([A-Za-z0-9_-]+)")
_RECALL = re.compile(r"recall:|what do you remember about", re.IGNORECASE)


@dataclass(slots=True)
class Reply:
    """One scripted answer; the constructors below make the usual ones."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """Each {"name", "arguments" (an object, or a str sent as it is), "id" (optional)}."""
    finish_reason: str | None = None
    """Default: tool_calls if there are any, else stop."""
    usage: dict[str, Any] | None = None
    """Default: estimated from the lengths. An empty dict sends none."""
    status: int = 200
    error: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: str | None = None
    """Sent as the whole body, whatever was asked."""
    pieces: int = 0
    """How many chunks the text is streamed in; default: one for every 24 characters."""
    delay_s: float = 0.0
    """Wait before the status line."""
    chunk_delay_s: float | None = None
    """Wait before each chunk of a stream; default: that of the server."""
    disconnect_after: int | None = None
    """Cut the connection after so many content chunks of a stream; 0: before the first."""
    done_marker: bool = True
    """Whether a stream ends with ``data: [DONE]``."""
    stall_after: int | None = None
    """Fall silent after so many content chunks of a stream, until the client leaves."""
    linger_s: float = 0.0
    """Keep the connection of a finished stream open so long."""


def text(content: str, **more: Any) -> Reply:
    """Answer with a text."""
    return Reply(text=content, **more)


def tool_call(name: str, arguments: Any = None, *, call_id: str | None = None, **more: Any) -> Reply:
    """Answer with one tool call."""
    call = {"name": name, "arguments": {} if arguments is None else arguments}
    if call_id:
        call["id"] = call_id
    return Reply(tool_calls=[call], **more)


def tool_calls(*calls: tuple[str, Any], **more: Any) -> Reply:
    """Answer with several tool calls, each (name, arguments)."""
    return Reply(tool_calls=[{"name": name, "arguments": arguments} for name, arguments in calls], **more)


def error(status: int, code: str | None = None, message: str = "", *, retry_after: float | None = None) -> Reply:
    """Fail with an HTTP status and an OpenAI error body."""
    kind = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}.get(status, "error")
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    body = {"message": message or f"scripted error {status}", "type": kind, "param": None, "code": code}
    return Reply(status=status, error=body, headers=headers)


def context_full() -> Reply:
    """Fail as OpenAI does when the prompt is too long."""
    return error(400, "context_length_exceeded", "This model's maximum context length is 4096 tokens.")


def garbage() -> Reply:
    """Answer 200 with something that is neither JSON nor a stream."""
    return Reply(raw="<html><body>It works!</body></html>")


def disconnect() -> Reply:
    """Close the connection before the first content."""
    return Reply(text="never seen", disconnect_after=0)


def disconnect_midway(content: str, after: int = 1, pieces: int = 4) -> Reply:
    """Close the connection after ``after`` of ``pieces`` chunks of the text."""
    return Reply(text=content, disconnect_after=after, pieces=pieces)


def slow(seconds: float, content: str = "late") -> Reply:
    """Answer after a while."""
    return Reply(text=content, delay_s=seconds)


@dataclass(slots=True)
class Recorded:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    """Parsed JSON, or the text if it was none."""
    time: float

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of a chat request."""
        return list(self.body.get("messages") or []) if isinstance(self.body, dict) else []

    @property
    def last_user(self) -> str:
        """The text of the last user message."""
        return next((plain(m.get("content")) for m in reversed(self.messages) if m.get("role") == "user"), "")

    @property
    def prompt(self) -> str:
        """All system and user text, a blank line between messages."""
        return "\n\n".join(plain(m.get("content")) for m in self.messages if m.get("role") in ("system", "user"))

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools offered."""
        tools = (self.body.get("tools") or []) if isinstance(self.body, dict) else []
        return [(tool.get("function") or {}).get("name", "") for tool in tools]


def plain(content: Any) -> str:
    """Return the text of a message's content, be it a string or a list of parts."""
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def default_reply(request: Recorded) -> Reply:
    """Return what an unscripted server answers."""
    messages = request.messages
    if messages and messages[-1].get("role") == "tool":
        return text(f"The tool answered: {plain(messages[-1].get('content'))}")
    asked = request.last_user
    if match := _CALL.search(asked):
        name = match.group(1)
        if name in request.tool_names:
            return tool_call(name, _json_after(asked, match.end()))
    if _RECALL.search(asked):
        return text(request.prompt)
    return text(asked)


def _json_after(string: str, start: int) -> Any:
    rest = string[start:].lstrip()
    if not rest.startswith("{"):
        return {}
    try:
        return json.JSONDecoder().raw_decode(rest)[0]
    except json.JSONDecodeError:
        return {}
