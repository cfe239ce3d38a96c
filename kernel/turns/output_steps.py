"""The steps after the model: before_output, emit, after_output."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.prompt import PastTurn
from kernel.remember import event_of_frame
from kernel.turns.environment import TurnRun
from kernel.turns.frame import AFTER_OUTPUT, DONE, EMIT, SCHEMA_VERSION, TurnFrame

_DELIVERY_ATTEMPTS: Final = 4
_DELIVERY_TIMEOUT_S: Final = 10.0
_log = structlog.get_logger("turns")


async def before_output(run: TurnRun) -> str:
    """Plugins see the final text; one may change or replace it, or have nothing sent."""
    frame = run.frame
    result = await run.run_stage("before_output", {"final_text": frame.final_text or ""})
    frame.final_text = str(result.fields["final_text"] if result.response is None else result.response)
    return EMIT


async def emit(run: TurnRun) -> str:
    """Give the turn its outcome, durably, and then tell those who follow it."""
    frame = run.frame
    if frame.kind == "self" and frame.final_text:
        await _deliver(run, frame.final_text)
    await finish(run, "answer", frame.final_text or "")
    return AFTER_OUTPUT


async def after_output(run: TurnRun) -> str:
    """Plugins may watch what was sent."""
    await run.run_stage("after_output", {"final_text": run.frame.final_text or ""})
    return DONE


async def finish(run: TurnRun, outcome: str, text: str, error: HomeAgentError | None = None) -> None:
    """Record the one outcome of the turn, then tell the followers, the lane's timeline, the memory and the ring."""
    frame, environment = run.frame, run.environment
    item = outcome_item(frame, outcome, text, error)
    await environment.journal.finish(
        frame.turn_id, outcome, text, item, frame=frame.pack(), schema_version=SCHEMA_VERSION
    )
    run.feed.close(item)
    timeline = await environment.timelines.of(*frame.lane)
    timeline.append(PastTurn(frame.turn_id, frame.text, text or None, f"{outcome}: {error}" if error else outcome))
    if not frame.no_memory:
        environment.rememberer.tell(event_of_frame(frame, text))
    await run.publish(
        "turn.finished",
        {
            "channel": frame.channel,
            "conversation": frame.conversation,
            "outcome": outcome,
            "usage": asdict(frame.usage),
            "step_ms": {name: round(ms, 2) for name, ms in run.step_ms.items()},
        },
    )


def outcome_item(frame: TurnFrame, outcome: str, text: str, error: HomeAgentError | None) -> dict[str, Any]:
    """Return the last item that followers of a turn get."""
    return {
        "type": "outcome",
        "outcome": outcome,
        "text": text,
        "error": None if error is None else {"code": error.code, "message": error.message, "hint": error.hint},
        "usage": asdict(frame.usage),
        "model": frame.used_model,
        "finish_reason": frame.finish_reason,
        "partial": frame.is_partial,
    }


async def _deliver(run: TurnRun, text: str) -> None:
    """Send an answer that nobody waits for to its channel; the journal's history keeps it in any case."""
    frame, environment = run.frame, run.environment
    channel = environment.channels.output(frame.channel)
    if channel is None:
        _log.warning("no such output channel", channel=frame.channel, turn=frame.turn_id)
        return
    body = {
        "output_id": frame.turn_id,
        "channel": frame.channel,
        "payload": text,
        "type": "text",
        "meta": {},
        "conversation": frame.conversation,
        "principal": frame.principal,
    }
    for attempt in range(1, _DELIVERY_ATTEMPTS + 1):
        try:
            receipt = await environment.bus.call(f"{channel.plugin}.output", body, timeout_s=_DELIVERY_TIMEOUT_S)
            _log.info("output sent", channel=frame.channel, turn=frame.turn_id, status=receipt.get("status"))
            return
        except HomeAgentError as error:
            _log.warning("output not sent", channel=frame.channel, turn=frame.turn_id, reason=str(error))
        await asyncio.sleep(attempt)
