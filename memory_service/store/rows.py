"""An event as a row of its table, with its words beside it, and back."""

from __future__ import annotations

import json
import time
from typing import Any

import apsw

from memory_service.model import Event, ToolResult, estimated_tokens
from memory_service.store.audiences import HOUSEHOLD, intern
from memory_service.words.days import day_of

COLUMNS = (
    "e.id, e.channel, e.conversation, e.principal, e.speaker, e.time, e.origin, e.tier, e.tools_used, e.input,"
    " e.response, e.tool_results, (SELECT a.members FROM audience a WHERE a.number = e.audience), e.audience,"
    " (SELECT d.id FROM document d WHERE d.number = e.document)"
)
INDEXED_TOOL_CHARACTERS = 8_000
"""So much of an event's tool output is searchable; all of it is kept. Longer outputs would drown what was said."""

_INSERT = """
    INSERT INTO event (id, channel, conversation, principal, speaker, time, origin, audience, tokens, created,
        tools_used, input, response, tool_results)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""


def insert(connection: apsw.Connection, event: Event) -> bool:
    """Write an event and its words, inside the caller's transaction; False if it was there."""
    connection.execute(_INSERT, _values(event, intern(connection, event.visible_to, event.shared)))
    if connection.changes() == 0:
        return False
    number = connection.last_insert_rowid()
    connection.execute("INSERT INTO embedding_queue (kind, item) VALUES ('event', ?)", (number,))
    connection.execute(
        "INSERT INTO event_words (rowid, said, reply, tools, about) VALUES (?, ?, ?, ?, ?)",
        (number, event.input, event.response, _searchable(event.tool_results), _about(event)),
    )
    return True


def event_from(row: tuple[Any, ...]) -> Event:
    """Make an event of a row with :data:`COLUMNS`."""
    results = [ToolResult(item["name"], item["output"], item["no_memory"]) for item in json.loads(row[11])]
    return Event(
        id=row[0],
        channel=row[1],
        conversation=row[2],
        principal=row[3],
        speaker=row[4],
        visible_to=tuple(json.loads(row[12])),
        shared=row[13] == HOUSEHOLD,
        time=row[5],
        input=row[9],
        response=row[10],
        tools_used=tuple(json.loads(row[8])),
        tool_results=tuple(results),
        origin=row[6],
        tier=row[7],
        document=row[14],
    )


def _values(event: Event, audience: int) -> tuple[Any, ...]:
    results = [
        {"name": result.name, "output": result.output, "no_memory": result.no_memory} for result in event.tool_results
    ]
    return (
        event.id,
        event.channel,
        event.conversation,
        event.principal,
        event.speaker,
        event.time,
        event.origin,
        audience,
        estimated_tokens(event.input) + estimated_tokens(event.response),
        time.time(),
        json.dumps(event.tools_used, ensure_ascii=False),
        event.input,
        event.response,
        json.dumps(results, ensure_ascii=False),
    )


def _searchable(results: tuple[ToolResult, ...]) -> str:
    text = "\n".join(f"{result.name} {result.output}" for result in results if not result.no_memory)
    return text[:INDEXED_TOOL_CHARACTERS]


def _about(event: Event) -> str:
    return f"{event.speaker} {day_of(event.time)}"
