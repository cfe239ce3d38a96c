"""The steps before the model: on_input, recall, pre_action."""

from __future__ import annotations

from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.prompt import PastTurn
from kernel.turns import window
from kernel.turns.budget import budget, fixed_parts
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, LLM, ON_INPUT, PRE_ACTION, RECALL

_RECALL_TIMEOUT_S: Final = 10.0
_RECALL_LIMIT: Final = 8
_MOST_MEMORY_TOKENS: Final = 1500
_QUERY_CHARACTERS: Final = 4000
_SETTLE_S: Final = 0.25
_log = structlog.get_logger("turns")


async def receive(run: TurnRun) -> str:
    """The turn has left the queue of its lane."""
    return ON_INPUT


async def on_input(run: TurnRun) -> str:
    """Plugins see the raw message first; one may change it, or answer it without the model."""
    frame = run.frame
    result = await run.run_stage("on_input", {"raw_message": frame.message})
    message = str(result.fields["raw_message"])
    frame.raw_message = None if message == frame.text else message
    if result.response is not None:
        frame.final_text = result.response
        return BEFORE_OUTPUT
    return RECALL


async def recall(run: TurnRun) -> str:
    """Ask the memory what belongs to the message; without the memory the turn goes on and says so."""
    frame, environment = run.frame, run.environment
    past = await past_turns(run)
    await environment.rememberer.settle(_SETTLE_S, frame.lane)
    request = {
        "query": frame.message[:_QUERY_CHARACTERS],
        "audience": [frame.principal],
        "exclude": [turn.turn_id for turn in past],
        "limit": _RECALL_LIMIT,
        "budget_tokens": max(1, min(_MOST_MEMORY_TOKENS, run.memory_tokens)),
    }
    try:
        answer = await environment.bus.call("memory.recall", request, timeout_s=_RECALL_TIMEOUT_S, idempotent=True)
    except HomeAgentError as error:
        _log.warning("recall failed", turn=frame.turn_id, reason=str(error))
        frame.memory_state = "unreachable"
        return PRE_ACTION
    frame.memory_state = "no_record" if answer.get("no_record") else "ok"
    frame.hits = list(answer.get("hits") or ()) if frame.memory_state == "ok" else []
    return PRE_ACTION


async def pre_action(run: TurnRun) -> str:
    """Plugins see the context before the model does; one may change it, or answer without the model."""
    frame = run.frame
    if run.environment.stages.handlers("pre_action"):
        before = await prefix(run)
        result = await run.run_stage("pre_action", {"context_messages": before})
        after = list(result.fields["context_messages"])
        if after and after != before:
            frame.context = run.prefix = after
        if result.response is not None:
            frame.final_text = result.response
            return BEFORE_OUTPUT
    return LLM


async def past_turns(run: TurnRun) -> list[PastTurn]:
    """Return the lane's last turns that fit into this turn's prompt."""
    if run.past is None:
        frame, config = run.frame, run.environment.config
        timeline = await run.environment.timelines.of((*frame.lane, frame.principal))
        tokens = await budget(run)
        run.memory_tokens = tokens.memory
        max_turns = config.int("core.agent.max_context_size")
        if not timeline.is_within(max_turns, tokens.lasting_timeline):
            await window.renew(run, timeline, tokens.lasting_timeline)
        run.past = timeline.fitting(max_turns, tokens.timeline)
        run.is_pruned = timeline.is_pruned
    return run.past


async def prefix(run: TurnRun) -> list[dict[str, Any]]:
    """Return the messages up to and including the input."""
    if run.prefix is None:
        frame, prompts = run.frame, run.environment.prompts
        past = await past_turns(run)
        run.prefix = frame.context or [
            prompts.fixed(fixed_parts(run)),
            *prompts.timeline(past, is_pruned=run.is_pruned),
            prompts.input(
                frame.message,
                now=frame.accepted_at,
                channel=frame.channel,
                speaker=frame.speaker,
                hits=frame.hits,
                memory_state=frame.memory_state,
                asks_for_persona=await run.asks_for_persona(),
            ),
        ]
    return run.prefix


def shrink(run: TurnRun) -> str:
    """Halve the context, which the model found too long; plugins see the new one before the model does."""
    frame = run.frame
    frame.shrunk += 1
    frame.hits = frame.hits[: len(frame.hits) // 2]
    run.past = run.prefix = frame.context = None
    return PRE_ACTION
