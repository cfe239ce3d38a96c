"""The one outcome of a turn: recorded, then told to all who want to know."""

from __future__ import annotations

from typing import Any

import structlog

from homeagent_sdk.errors import Conflict, HomeAgentError
from kernel.remember import event_of_frame
from kernel.turns.environment import TurnRun
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.history import past_turn, recorded_item

_log = structlog.get_logger("turns")


async def finish(run: TurnRun, outcome: str, text: str, error: HomeAgentError | None = None) -> None:
    """Record the outcome, then tell the followers, the lane's timeline, the memory and the ring.

    A turn that has an outcome already keeps it: the followers are told that one.

    :raises NotRecorded: the journal cannot be written; the turn is unfinished there and nobody was told anything
    """
    frame, journal = run.frame, run.environment.journal
    item = outcome_item(frame, outcome, text, error)
    packed = _packed(frame)
    version = SCHEMA_VERSION if packed is not None else None
    try:
        await run.record(
            lambda: journal.finish(frame.turn_id, outcome, text, item, frame=packed, schema_version=version)
        )
    except Conflict as conflict:
        _log.error("the turn has an outcome already", turn=frame.turn_id, reason=str(conflict))
        await close_with_recorded(run)
        return
    _tell(run, item)
    await run.publish(
        "turn.finished",
        {
            "channel": frame.channel,
            "conversation": frame.conversation,
            "outcome": outcome,
            "usage": item["usage"],
            "step_ms": {name: round(ms, 2) for name, ms in run.step_ms.items()},
        },
    )


async def close_with_recorded(run: TurnRun) -> None:
    """Tell the followers the outcome that the journal has."""
    turn = await run.environment.journal.get(run.frame.turn_id)
    if turn is not None and turn.outcome is not None:
        run.feed.close(recorded_item(turn))


def outcome_item(frame: TurnFrame, outcome: str, text: str, error: HomeAgentError | None) -> dict[str, Any]:
    """Return the last item that followers of a turn get."""
    return {
        "type": "outcome",
        "outcome": outcome,
        "text": text,
        "error": None if error is None else {"code": error.code, "message": error.message, "hint": error.hint},
        "usage": frame.usage.to_wire(),
        "model": frame.used_model,
        "finish_reason": frame.finish_reason,
        "partial": frame.is_partial,
    }


def _packed(frame: TurnFrame) -> bytes | None:
    """Return the frame for the journal; None if it holds what cannot be packed: then the one recorded last stays."""
    try:
        return frame.pack_finished()
    except (ValueError, TypeError, OverflowError) as error:
        _log.error("the frame cannot be recorded", turn=frame.turn_id, reason=str(error))
        return None


def _tell(run: TurnRun, item: dict[str, Any]) -> None:
    frame, environment = run.frame, run.environment
    run.feed.close(item)
    environment.timelines.append((*frame.lane, frame.principal), past_turn(frame.turn_id, frame.message, item))
    if not frame.no_memory:
        environment.rememberer.tell(event_of_frame(frame, item["text"]))
