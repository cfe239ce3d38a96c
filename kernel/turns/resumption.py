"""Takes up what an earlier run of the kernel left unfinished."""

from __future__ import annotations

from typing import Any

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.journal import Journal, JournaledTurn
from kernel.turns.frame import TurnFrame
from kernel.turns.lanes import LaneKey, Lanes
from kernel.turns.machine import PAUSED, Earlier, TurnMachine

_log = structlog.get_logger("turns")


async def expect_unfinished(journal: Journal, machine: TurnMachine, lanes: Lanes) -> None:
    """Put the unfinished turns into their lanes, in the order in which they were accepted.

    Called before anybody can send or follow anything, so that none is missed and none overtaken. Of each lane only the
    first may have been running when the kernel ended.
    """
    begun: set[LaneKey] = set()
    for turn in await journal.unfinished():
        try:
            frame = TurnFrame.unpack(turn.frame, turn.schema_version)
        except HomeAgentError as error:
            _log.error("an unfinished turn cannot be read", turn=turn.turn_id, reason=str(error))
            await journal.finish(turn.turn_id, "error", "", _unreadable(error))
            continue
        _log.info("turn taken up again", turn=turn.turn_id, step=frame.step)
        machine.expect(frame, _earlier(turn, is_first=frame.lane not in begun))
        lanes.add(frame)
        begun.add(frame.lane)


def _earlier(turn: JournaledTurn, *, is_first: bool) -> Earlier:
    if turn.step == PAUSED:
        return Earlier.PAUSED
    return Earlier.BROKEN_OFF if is_first else Earlier.WAITED


def _unreadable(error: HomeAgentError) -> dict[str, Any]:
    problem = {"code": "internal", "message": f"the turn could not be read after a restart: {error}", "hint": None}
    return {
        "type": "outcome",
        "outcome": "error",
        "text": "",
        "error": problem,
        "usage": {},
        "model": "",
        "finish_reason": "error",
        "partial": False,
    }
