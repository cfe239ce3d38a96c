"""What ``memory.window`` is asked, checked field by field, and what it answers."""

from __future__ import annotations

from typing import Any, Final

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid
from memory_service.context.choice import Limits
from memory_service.context.window import Window, WindowRequest
from memory_service.fields import Fields
from memory_service.model import Event

MOST_TOKENS: Final = 10_000_000
MOST_EVENTS: Final = 10_000
_QUERY_CHARACTERS: Final = 8_000
"""More of an input is not compared with anything."""


def parse_window(body: Any) -> WindowRequest:
    """Return what window to make.

    :raises Invalid: with ``field`` naming what is wrong
    """
    fields = Fields(body)
    lane = fields.inside("lane")
    audience = fields.names("audience")
    if not audience:
        # Nobody may see everything: an empty audience must not mean that no rule applies.
        raise Invalid(text("memory.empty_audience"), field="audience", hint=text("memory.empty_audience_hint"))
    return WindowRequest(
        lane=(lane.name("channel"), lane.name("conversation")),
        principal=fields.name("principal"),
        audience=audience,
        query=fields.text("query", default="")[:_QUERY_CHARACTERS],
        kept=frozenset(fields.names("keep")),
        limits=Limits(
            budget_tokens=fields.number("budget_tokens", 10_000, 0, MOST_TOKENS),
            kept_tokens=fields.number("keep_tokens", 0, 0, MOST_TOKENS),
            max_events=fields.number("max_events", 30, 1, MOST_EVENTS),
            protected=fields.number("protected", 10, 1, MOST_EVENTS),
        ),
    )


def window_body(window: Window) -> dict[str, Any]:
    """Write the answer."""
    return {
        "events": [_event_body(event) for event in window.events],
        "archived": window.archived,
        "document": window.documents[-1] if window.documents else None,
        "documents": list(window.documents),
    }


def _event_body(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "time": event.time,
        "channel": event.channel,
        "conversation": event.conversation,
        "speaker": event.speaker,
        "text": event.input,
        "reply": event.response,
    }
