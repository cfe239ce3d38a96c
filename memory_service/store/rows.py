"""An event as a row of its table, with its words beside it, and back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import apsw

from memory_service.model import Event, ToolResult, estimated_tokens
from memory_service.store.audiences import HOUSEHOLD, intern
from memory_service.store.event_words import Words, words_of, write_words

COLUMNS = (
    "e.id, e.channel, e.conversation, e.principal, e.speaker, e.time, e.origin, e.tier, e.tools_used, e.input,"
    " e.response, e.tool_results, (SELECT a.members FROM audience a WHERE a.number = e.audience), e.audience,"
    " (SELECT d.id FROM document d WHERE d.number = e.document)"
)
_INSERT = """
    INSERT INTO event (id, channel, conversation, principal, speaker, time, origin, audience, tokens, created,
        tools_used, input, response, tool_results)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An event ready to be stored, with all that takes time done: its words are cut, its lists are written."""

    event: Event
    tokens: int
    tools_used: str
    tool_results: str
    words: Words


def prepared(event: Event) -> Prepared:
    """Make an event ready; about 0.1 ms for a turn of 130 characters, so long ones belong in a thread."""
    results = [
        {"name": result.name, "output": result.output, "no_memory": result.no_memory} for result in event.tool_results
    ]
    return Prepared(
        event,
        estimated_tokens(event.input) + estimated_tokens(event.response),
        _written(event.tools_used),
        _written(results),
        words_of(event.input, event.response, event.tool_results, event.speaker, event.time),
    )


def insert(connection: apsw.Connection, events: Iterable[Prepared]) -> int:
    """Write events and their words, inside the caller's transaction.

    :returns: how many were new; those that were there already, or that were forgotten, are left as they are
    """
    audiences: dict[tuple[bool, tuple[str, ...]], int] = {}
    now, new = time.time(), 0
    for item in events:
        event = item.event
        seen_by = (event.shared, event.visible_to)
        if seen_by not in audiences:
            audiences[seen_by] = intern(connection, event.visible_to, event.shared)
        connection.execute(_INSERT, _values(item, audiences[seen_by], now))
        if connection.changes() == 0:
            continue
        number = connection.last_insert_rowid()
        connection.execute("INSERT INTO embedding_queue (kind, item) VALUES ('event', ?)", (number,))
        write_words(connection, number, item.words)
        # What was told in this turn was stored before it.
        connection.execute(
            "UPDATE relation SET source_event = ? WHERE source = ? AND source_event IS NULL", (number, event.id)
        )
        new += 1
    return new


def event_from(row: tuple[Any, ...]) -> Event:
    """Make an event of a row with :data:`COLUMNS`."""
    return Event(
        id=row[0],
        channel=row[1],
        conversation=row[2],
        principal=row[3],
        speaker=row[4],
        visible_to=_names(row[12]),
        shared=row[13] == HOUSEHOLD,
        time=row[5],
        input=row[9],
        response=row[10],
        tools_used=_names(row[8]),
        tool_results=() if row[11] == "[]" else _results(row[11]),
        origin=row[6],
        tier=row[7],
        document=row[14],
    )


def _written(items: Sequence[object]) -> str:
    return json.dumps(items, ensure_ascii=False) if items else "[]"


@lru_cache(maxsize=1_024)
def _names(written: str) -> tuple[str, ...]:
    """Read a list of names; few sets of tools and of principals recur in all events."""
    return tuple(json.loads(written))


def _results(written: str) -> tuple[ToolResult, ...]:
    return tuple(ToolResult(item["name"], item["output"], item["no_memory"]) for item in json.loads(written))


def _values(item: Prepared, audience: int, now: float) -> tuple[Any, ...]:
    event = item.event
    return (
        event.id,
        event.channel,
        event.conversation,
        event.principal,
        event.speaker,
        event.time,
        event.origin,
        audience,
        item.tokens,
        now,
        item.tools_used,
        event.input,
        event.response,
        item.tool_results,
    )
