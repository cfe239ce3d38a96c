"""Turns that are over, as later turns, and those who ask late, see them."""

from __future__ import annotations

from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.journal import Journal, JournaledTurn
from kernel.prompt import PastTurn
from kernel.turns.frame import TurnFrame

_LONGEST_NOTE: Final = 300
_NEVER_HAPPENED: Final = (None, "skipped", "merged")
_log = structlog.get_logger("turns")


async def load_timeline(journal: Journal, lane: tuple[str, str, str], most: int) -> list[PastTurn]:
    """Return the last turns of a lane that the journal has, oldest first.

    :param lane: channel, conversation, principal
    """
    channel, conversation, principal = lane
    turns = await journal.history(channel, conversation, most, principal=principal)
    return [past_turn(turn.turn_id, _message(turn), recorded_item(turn)) for turn in turns if _happened(turn)]


def past_turn(turn_id: str, message: str, item: dict[str, Any]) -> PastTurn:
    """Return a finished turn as later turns of its lane see it.

    :param item: its outcome item
    """
    text, outcome, error = item.get("text"), item.get("outcome"), item.get("error")
    note = f"{outcome}: {error['message']}" if error else str(outcome) if outcome != "answer" else ""
    return PastTurn(turn_id, message, text or None, note[:_LONGEST_NOTE])


def recorded_item(turn: JournaledTurn) -> dict[str, Any]:
    """Return the last item of a turn that finished earlier, for those who follow it now."""
    if turn.result is not None:
        return turn.result
    return {
        "type": "outcome",
        "outcome": turn.outcome,
        "text": turn.answer or "",
        "error": None,
        "usage": {},
        "model": "",
        "finish_reason": "",
        "partial": False,
    }


def _happened(turn: JournaledTurn) -> bool:
    return turn.outcome not in _NEVER_HAPPENED


def _message(turn: JournaledTurn) -> str:
    try:
        return TurnFrame.unpack(turn.frame, turn.schema_version).message
    except HomeAgentError as error:
        _log.warning("a frame cannot be read", turn=turn.turn_id, reason=str(error))
        return turn.text
