"""The journal's SQL, and how a row becomes a record."""

from __future__ import annotations

from typing import Any

import apsw
import msgpack

from kernel.journal.records import REMEMBERED_OUTCOMES, JournaledTurn, NewTurn

_COLUMNS = (
    "turn_id, channel, conversation, principal, delivery_id, accepted_at, step, frame, schema_version, outcome, text, "
    "answer, result, finished_at, no_memory, remembered, attempts"
)
_RESULT, _NO_MEMORY, _REMEMBERED = 12, 14, 15
_HAPPENED = ", ".join(f"'{outcome}'" for outcome in REMEMBERED_OUTCOMES)
_UNREMEMBERED = f"remembered = 0 AND no_memory = 0 AND outcome IN ({_HAPPENED})"

ACCEPT = """INSERT INTO turns
    (turn_id, channel, conversation, principal, delivery_id, accepted_at, step, frame, schema_version, text, no_memory)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
BY_DELIVERY = "SELECT turn_id FROM turns WHERE channel = ? AND delivery_id = ?"
TOUCH_CONVERSATION = """INSERT INTO conversations (channel, principal, conversation, title, last_time)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET last_time = excluded.last_time"""
SAVE = """UPDATE turns SET attempts = CASE WHEN step = :step THEN attempts ELSE 0 END,
    step = :step, frame = :frame, schema_version = :schema_version
    WHERE turn_id = :turn_id AND outcome IS NULL"""
FINISH = """UPDATE turns SET step = :step, outcome = :outcome, answer = :answer, result = :result,
    finished_at = :finished_at, frame = coalesce(:frame, frame),
    schema_version = coalesce(:schema_version, schema_version)
    WHERE turn_id = :turn_id AND outcome IS NULL"""
BEGIN_ATTEMPT = "UPDATE turns SET attempts = attempts + 1 WHERE turn_id = :turn_id AND outcome IS NULL"
ATTEMPTS = "SELECT attempts FROM turns WHERE turn_id = ?"
OUTCOME = "SELECT outcome FROM turns WHERE turn_id = ?"
GET = f"SELECT {_COLUMNS} FROM turns WHERE turn_id = :turn_id"
UNFINISHED = f"SELECT {_COLUMNS} FROM turns WHERE outcome IS NULL ORDER BY sequence"
HISTORY = f"""SELECT {_COLUMNS} FROM turns
    WHERE channel = :channel AND conversation = :conversation AND (:principal IS NULL OR principal = :principal)
        AND forgotten = 0
    ORDER BY sequence DESC LIMIT :limit"""
CONVERSATIONS = """SELECT conversation, title, last_time FROM conversations
    WHERE channel = ? AND principal = ? ORDER BY last_time DESC, conversation DESC LIMIT ?"""
UNREMEMBERED = f"SELECT {_COLUMNS} FROM turns WHERE {_UNREMEMBERED} ORDER BY sequence LIMIT :limit"
MARK_REMEMBERED = "UPDATE turns SET remembered = 1 WHERE turn_id = ? AND remembered = 0"
MUST_BE_KNOWN = f"""SELECT sequence, turn_id, finished_at, remembered FROM turns
    WHERE sequence > ? AND no_memory = 0 AND forgotten = 0 AND outcome IN ({_HAPPENED}) ORDER BY sequence LIMIT ?"""
PRUNE = f"""DELETE FROM turns WHERE sequence IN (
    SELECT sequence FROM turns AS old
    WHERE outcome IS NOT NULL AND finished_at < :before AND NOT ({_UNREMEMBERED})
        AND sequence <= coalesce((
            SELECT sequence FROM turns AS lane
            WHERE lane.channel = old.channel AND lane.conversation = old.conversation
            ORDER BY sequence DESC LIMIT 1 OFFSET :keep), 0)
    ORDER BY finished_at LIMIT :slice)"""
GIVE_BACK_SPACE = "PRAGMA incremental_vacuum(1000)"
COUNTS = f"""SELECT
    (SELECT count(*) FROM turns WHERE outcome IS NULL),
    (SELECT count(*) FROM turns WHERE outcome IS NOT NULL),
    (SELECT count(*) FROM turns WHERE {_UNREMEMBERED})"""


def values_of(turn: NewTurn, now: float) -> tuple[Any, ...]:
    """Return the values for :data:`ACCEPT`."""
    return (
        turn.turn_id,
        turn.channel,
        turn.conversation,
        turn.principal,
        turn.delivery_id,
        now,
        turn.step,
        turn.frame,
        turn.schema_version,
        turn.text,
        int(turn.no_memory),
    )


def turns(connection: apsw.Connection, statement: str, values: dict[str, Any]) -> list[JournaledTurn]:
    """Run a query that selects whole turns."""
    return [_turn(row) for row in connection.execute(statement, values)]


def _turn(row: tuple[Any, ...]) -> JournaledTurn:
    values = list(row)
    if values[_RESULT] is not None:
        values[_RESULT] = msgpack.unpackb(values[_RESULT], strict_map_key=False)
    values[_NO_MEMORY] = bool(values[_NO_MEMORY])
    values[_REMEMBERED] = bool(values[_REMEMBERED])
    return JournaledTurn(*values)
