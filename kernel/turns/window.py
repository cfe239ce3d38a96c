"""A full timeline: the memory chooses by relevance what it goes on with, and archives the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.prompt import PastTurn, Timeline
from kernel.turns.environment import TurnRun

_TIMEOUT_S: Final = 2.0
_SETTLE_S: Final = 0.25
_QUERY_CHARACTERS: Final = 4000
_NO_LANE: Final = ("", "")
_log = structlog.get_logger("turns")


async def renew(run: TurnRun, timeline: Timeline, budget_tokens: int) -> None:
    """Make a timeline that does not fit any more anew: what the memory chooses, and the lane's own last turns.

    If the memory does not answer, the timeline stays as it is: this turn leaves out what does not fit, and the next
    one tries again.

    :param budget_tokens: what the timeline may cost
    """
    frame, environment = run.frame, run.environment
    max_turns = environment.config.int("core.agent.max_context_size")
    protected = environment.config.int("core.agent.context.protected_count")
    last = timeline.last(protected, max_turns, budget_tokens)
    # What the memory has not been told yet, it could not choose: here that is true of this lane's turns, too.
    await environment.rememberer.settle(_SETTLE_S, _NO_LANE)
    request = {
        "lane": {"channel": frame.channel, "conversation": frame.conversation},
        "principal": frame.principal,
        "audience": [frame.principal],
        "query": frame.message[:_QUERY_CHARACTERS],
        "keep": [turn.turn_id for turn in last],
        "keep_tokens": sum(turn.tokens for turn in last),
        "protected": protected,
        "budget_tokens": budget_tokens,
        "max_events": max_turns,
    }
    try:
        answer = await environment.bus.call("memory.window", request, timeout_s=_TIMEOUT_S, idempotent=True)
    except HomeAgentError as error:
        _log.warning("the context was not pruned", turn=frame.turn_id, reason=str(error))
        return
    known = {turn.turn_id: turn for turn in timeline.turns}
    chosen = [known.get(event["id"]) or _as_turn(event, frame.lane) for event in answer["events"]]
    timeline.renew(chosen, last, max_turns, budget_tokens)
    await run.publish(
        "context.pruned",
        {
            "channel": frame.channel,
            "conversation": frame.conversation,
            "count": answer["archived"],
            "document": answer["document"],
        },
    )


def _as_turn(event: Mapping[str, Any], lane: tuple[str, str]) -> PastTurn:
    """Return an event as a turn of the timeline; of another lane it says when and where it was."""
    text = str(event["text"])
    if (event["channel"], event["conversation"]) != lane:
        moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(event["time"])))
        where = f"by {event['channel']}" + (", in another conversation" if event["channel"] == lane[0] else "")
        text = f"[{moment}, {where}] {text}"
    return PastTurn(str(event["id"]), text, str(event["reply"]) or None)
