"""A database as the first release made it, built by that release's own migration step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from homeagent_sdk.migrations import migrate
from memory_service.model import Event, ToolResult
from memory_service.store.connection import open_for_writing
from memory_service.store.schema import MIGRATIONS
from memory_service.words.days import day_of

_INSERT = """
    INSERT INTO event (id, channel, conversation, principal, speaker, time, origin, shared, created, tools_used, input,
        response, tool_results)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def build(path: Path, events: Iterable[Event]) -> None:
    """Write a ``memory.db`` with the first release's schema, and events in it."""
    connection = open_for_writing(path)
    migrate(connection, MIGRATIONS[:1])
    with connection:
        for event in events:
            connection.execute(_INSERT, _values(event))
            number = connection.last_insert_rowid()
            connection.executemany(
                "INSERT INTO event_visibility (event, principal) VALUES (?, ?)",
                [(number, principal) for principal in event.visible_to],
            )
            tools = "\n".join(f"{result.name} {result.output}" for result in event.tool_results if not result.no_memory)
            connection.execute(
                "INSERT INTO event_words (rowid, said, reply, tools, about) VALUES (?, ?, ?, ?, ?)",
                (number, event.input, event.response, tools[:8_000], f"{event.speaker} {day_of(event.time)}"),
            )
    connection.close()


def _values(event: Event) -> tuple[object, ...]:
    return (
        event.id,
        event.channel,
        event.conversation,
        event.principal,
        event.speaker,
        event.time,
        event.origin,
        int(event.shared),
        event.time,
        json.dumps(event.tools_used, ensure_ascii=False),
        event.input,
        event.response,
        json.dumps([written(result) for result in event.tool_results], ensure_ascii=False),
    )


def written(result: ToolResult) -> dict[str, object]:
    """Return a tool's result as it is stored."""
    return {"name": result.name, "output": result.output, "no_memory": result.no_memory}
