"""What callers send, checked field by field, and what they get back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid
from memory_service.fields import Fields
from memory_service.model import Event, Hit, Recalled, ToolResult

MAX_EVENT_CHARACTERS = 8_000_000
"""Of one event, all its texts together."""

MAX_QUERY_CHARACTERS = 100_000
MAX_LIMIT = 200
MAX_BUDGET_TOKENS = 1_000_000
_LATEST_TIME = 253_402_300_799
"""The end of the year 9999, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class RecallRequest:
    """What ``memory.recall`` asks: see :meth:`memory_service.recall.recall.Recall.recall`."""

    query: str
    audience: tuple[str, ...]
    exclude: tuple[str, ...]
    limit: int
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What ``memory.search`` asks; ``principal`` None searches everybody's events."""

    query: str
    principal: str | None
    limit: int


def parse_append(body: Any) -> Event | None:
    """Return the event to store, or None if it asks not to be remembered.

    :raises Invalid: with ``field`` naming what is wrong
    """
    event = Fields(body).inside("event")
    if event.take("no_memory", bool, False):
        return None
    lane = event.inside("lane")
    shared, visible_to = _visibility(event.inside("visibility"))
    parsed = Event(
        id=event.name("id"),
        channel=lane.name("channel"),
        conversation=lane.name("conversation"),
        principal=event.name("principal"),
        speaker=event.text("speaker", default="") or event.name("principal"),
        visible_to=visible_to,
        shared=shared,
        time=checked_time(event),
        input=event.text("input"),
        response=event.text("response", default=""),
        tools_used=event.names("tools_used"),
        tool_results=tuple(_tool_result(result) for result in event.each("tool_results")),
        origin=_origin(event),
    )
    size = len(parsed.input) + len(parsed.response) + sum(len(result.output) for result in parsed.tool_results)
    if size > MAX_EVENT_CHARACTERS:
        raise Invalid(
            text("memory.event_too_large", id=parsed.id, size=size, limit=MAX_EVENT_CHARACTERS),
            field="event",
            hint=text("memory.event_too_large_hint"),
        )
    return parsed


def parse_recall(body: Any) -> RecallRequest:
    """Return what to recall.

    :raises Invalid: with ``field`` naming what is wrong
    """
    fields = Fields(body)
    audience = fields.names("audience")
    if not audience:
        # Nobody may see everything: an empty audience must not mean that no rule applies.
        raise Invalid(text("memory.empty_audience"), field="audience", hint=text("memory.empty_audience_hint"))
    return RecallRequest(
        query=_query(fields),
        audience=audience,
        exclude=fields.names("exclude"),
        limit=fields.number("limit", 8, 1, MAX_LIMIT),
        budget_tokens=fields.number("budget_tokens", 1_500, 1, MAX_BUDGET_TOKENS),
    )


def parse_search(body: Any) -> SearchRequest:
    """Return what to search for.

    :raises Invalid: with ``field`` naming what is wrong
    """
    fields = Fields(body)
    principal = fields.name("principal") if fields.has("principal") else None
    return SearchRequest(_query(fields), principal, fields.number("limit", 8, 1, MAX_LIMIT))


def recalled_body(recalled: Recalled) -> dict[str, Any]:
    """Write the answer of ``memory.recall`` and ``memory.search``."""
    return {
        "hits": [_hit_body(hit) for hit in recalled.hits],
        "no_record": recalled.no_record,
        "omitted": recalled.omitted,
    }


def _hit_body(hit: Hit) -> dict[str, Any]:
    return {**asdict(hit), "score": round(hit.score, 4)}


def _query(fields: Fields) -> str:
    query = fields.text("query")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise fields.wrong("query", f"has {len(query)} characters, at most {MAX_QUERY_CHARACTERS} are allowed")
    return query


def _visibility(visibility: Fields) -> tuple[bool, tuple[str, ...]]:
    shared = visibility.take("shared", bool, False)
    principals = visibility.names("principals")
    if shared == bool(principals):
        raise visibility.wrong("principals", "must name who may see the event, unless it is shared: one of the two")
    return shared, principals


def checked_time(fields: Fields, name: str = "time") -> float:
    """Return a moment, seconds since 1970.

    :raises Invalid: it is no such moment
    """
    time = fields.real(name)
    if not 0 <= time <= _LATEST_TIME:
        raise fields.wrong(name, "must be seconds since 1970")
    return time


def _origin(event: Fields) -> str:
    origin = event.text("origin", default="user")
    if origin not in ("user", "self"):
        raise event.wrong("origin", "must be user or self")
    return origin


def _tool_result(result: Fields) -> ToolResult:
    output = result.value("output")
    if output is None or isinstance(output, str):
        written = result.text("output", default="")
    else:
        written = json.dumps(output, ensure_ascii=False, default=str)
    return ToolResult(result.name("name"), written, result.take("no_memory", bool, False))
