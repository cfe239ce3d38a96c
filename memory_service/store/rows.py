"""An event as rows, and back."""

from __future__ import annotations

import json
import time
from typing import Any

import apsw

from memory_service.model import Event, ToolResult
from memory_service.words.days import day_of

COLUMNS = (
    "e.id, e.channel, e.conversation, e.principal, e.speaker, e.time, e.origin, e.shared, e.tools_used, e.input,"
    " e.response, e.tool_results,"
    " (SELECT json_group_array(v.principal) FROM event_visibility v WHERE v.event = e.number)"
)
INDEXED_TOOL_CHARACTERS = 8_000
"""So much of an event's tool output is searchable; all of it is kept. Longer outputs would drown what was said."""

_INSERT = """
    INSERT INTO event (id, channel, conversation, principal, speaker, time, origin, shared, created, tools_used, input,
        response, tool_results)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""


def insert(connection: apsw.Connection, event: Event) -> bool:
    """Write an event, who may see it and its words, inside the caller's transaction; False if it was there."""
    connection.execute(_INSERT, _values(event))
    if connection.changes() == 0:
        return False
    number = connection.last_insert_rowid()
    connection.executemany(
        "INSERT INTO event_visibility (event, principal) VALUES (?, ?)",
        [(number, principal) for principal in dict.fromkeys(event.visible_to)],
    )
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
        shared=bool(row[7]),
        time=row[5],
        input=row[9],
        response=row[10],
        tools_used=tuple(json.loads(row[8])),
        tool_results=tuple(results),
        origin=row[6],
    )


def _values(event: Event) -> tuple[Any, ...]:
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
        int(event.shared),
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
