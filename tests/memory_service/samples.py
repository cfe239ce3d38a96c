"""Events for tests."""

from __future__ import annotations

from typing import Any

from memory_service.model import Event

NOON = 1_683_000_000.0
"""2023-05-02, in most time zones."""


def an_event(
    id: str, text: str = "hello", reply: str = "", *, sees: tuple[str, ...] = ("owner",), **more: Any
) -> Event:
    """Make an event that ``sees`` may see; an empty ``sees`` means the whole household."""
    fields: dict[str, Any] = {
        "channel": "webui",
        "conversation": "c1",
        "principal": "owner",
        "speaker": "Ann",
        "time": NOON,
        **more,
    }
    return Event(id=id, visible_to=sees, shared=not sees, input=text, response=reply, **fields)


def an_append(id: str, text: str = "hello", reply: str = "", /, **more: Any) -> dict[str, Any]:
    """Write the request of the kernel that appends such an event."""
    return {
        "event": {
            "id": id,
            "lane": {"channel": "webui", "conversation": "c1"},
            "principal": "owner",
            "speaker": "Ann",
            "visibility": {"principals": ["owner"]},
            "time": NOON,
            "input": text,
            "response": reply,
            "tools_used": [],
            "tool_results": [],
            "origin": "user",
            **more,
        }
    }
