"""Takes the words out of turns that are to be forgotten, and leaves what shows that they happened."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw

from kernel.journal.records import Forgotten, Selection

TITLE_CHARACTERS = 80
_EMPTY = """UPDATE turns SET text = '', answer = NULL, result = NULL, frame = x'', remembered = 1, forgotten = 1
    WHERE sequence IN (SELECT value FROM json_each(?)) AND outcome IS NOT NULL"""
_CONVERSATIONS = "SELECT channel, principal, conversation FROM conversations"
_ONE = "channel = ? AND principal = ? AND conversation = ?"
_FIRST_TEXT = f"SELECT text FROM turns WHERE {_ONE} AND forgotten = 0 ORDER BY sequence LIMIT 1"

Lane = tuple[str, str, str]
"""Channel, principal, conversation."""


def title_of(text: str) -> str:
    """Return the first words of a conversation."""
    return " ".join(text.split())[:TITLE_CHARACTERS]


def count(connection: apsw.Connection, selection: Selection) -> Forgotten:
    """Count what a selection holds."""
    holds, values = _condition(selection)
    finished, unfinished, earlier = connection.execute(
        "SELECT count(*) FILTER (WHERE outcome IS NOT NULL AND NOT forgotten), count(*) FILTER (WHERE outcome IS NULL),"
        f" count(*) FILTER (WHERE forgotten) FROM turns WHERE {holds}",
        values,
    ).get
    return Forgotten(finished, unfinished, earlier)


def sequences(connection: apsw.Connection, selection: Selection, limit: int) -> list[int]:
    """Return turns that are over and not forgotten yet."""
    holds, values = _condition(selection)
    question = f"SELECT sequence FROM turns WHERE outcome IS NOT NULL AND NOT forgotten AND {holds} LIMIT ?"
    return [sequence for (sequence,) in connection.execute(question, (*values, limit))]


def empty(connection: apsw.Connection, chosen: Sequence[int]) -> int:
    """Take the words out of turns; returns how many there were."""
    connection.execute(_EMPTY, (json.dumps(chosen),))
    return connection.changes()


def lanes(connection: apsw.Connection, selection: Selection) -> list[Lane]:
    """Return the conversations whose title may be the words of a turn that was forgotten, also of one pruned since."""
    if selection.ids:
        question = "SELECT DISTINCT channel, principal, conversation FROM turns"
        holds, values = _condition(selection)
    else:
        question, holds, values = _CONVERSATIONS, "TRUE", []
        for condition, value in (("principal = ?", selection.principal), ("last_time >= ?", selection.after)):
            if value is not None:
                holds += f" AND {condition}"
                values.append(value)
    return [
        (channel, principal, name)
        for channel, principal, name in connection.execute(f"{question} WHERE {holds}", values)
    ]


def rename(connection: apsw.Connection, chosen: Sequence[Lane]) -> None:
    """Give conversations the first words that are left as their title; one without any words goes."""
    for lane in chosen:
        text = connection.execute(_FIRST_TEXT, lane).get
        if text is None:
            connection.execute(
                "DELETE FROM conversations WHERE channel = ? AND principal = ? AND conversation = ?", lane
            )
        else:
            connection.execute(
                "UPDATE conversations SET title = ? WHERE channel = ? AND principal = ? AND conversation = ?",
                (title_of(text), *lane),
            )


def _condition(selection: Selection) -> tuple[str, list[Any]]:
    if selection.ids:
        return "turn_id IN (SELECT value FROM json_each(?))", [json.dumps(selection.ids)]
    conditions: list[str] = []
    values: list[Any] = []
    for condition, value in (
        ("principal = ?", selection.principal),
        ("accepted_at >= ?", selection.after),
        ("accepted_at < ?", selection.before),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    # A selection of nothing must not turn into one of everything.
    return " AND ".join(conditions) or "FALSE", values
