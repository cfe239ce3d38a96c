"""The steps before the model: on_input, recall, pre_action."""

from __future__ import annotations

from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from kernel.prompt import PromptParts, estimate_messages, estimate_tokens
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, LLM, ON_INPUT, PRE_ACTION, RECALL

_RECALL_TIMEOUT_S: Final = 10.0
_RECALL_LIMIT: Final = 8
_MOST_MEMORY_TOKENS: Final = 1500
_QUERY_CHARACTERS: Final = 4000
_SETTLE_S: Final = 0.25
_log = structlog.get_logger("turns")


async def receive(run: TurnRun) -> str:
    """The turn begins."""
    run.frame.raw_message = run.frame.text
    return ON_INPUT


async def on_input(run: TurnRun) -> str:
    """Plugins see the raw message first; one may change it, or answer it without the model."""
    frame = run.frame
    result = await run.run_stage("on_input", {"raw_message": frame.raw_message})
    frame.raw_message = str(result.fields["raw_message"])
    if result.response is not None:
        frame.final_text = result.response
        return BEFORE_OUTPUT
    return RECALL


async def recall(run: TurnRun) -> str:
    """Ask the memory what belongs to the message; without the memory the turn goes on and says so."""
    frame, environment = run.frame, run.environment
    past = await past_turns(run)
    await environment.rememberer.settle(_SETTLE_S)
    request = {
        "query": frame.raw_message[:_QUERY_CHARACTERS],
        "audience": [frame.principal],
        "exclude": [turn.turn_id for turn in past],
        "limit": _RECALL_LIMIT,
        "budget_tokens": min(_MOST_MEMORY_TOKENS, (await budgets(run))[0]),
    }
    try:
        answer = await environment.bus.call("memory.recall", request, timeout_s=_RECALL_TIMEOUT_S, idempotent=True)
    except HomeAgentError as error:
        _log.warning("recall failed", turn=frame.turn_id, reason=str(error))
        frame.memory_state = "unreachable"
        return PRE_ACTION
    if answer.get("no_record"):
        frame.memory_state, frame.hits = "no_record", []
    else:
        frame.memory_state, frame.hits = "ok", list(answer["hits"])
    return PRE_ACTION


async def pre_action(run: TurnRun) -> str:
    """Plugins see the context before the model does; one may change it, or answer without the model."""
    frame = run.frame
    if run.environment.stages.handlers("pre_action"):
        before = await prefix(run)
        result = await run.run_stage("pre_action", {"context_messages": before})
        if result.fields["context_messages"] != before:
            frame.context = run.prefix = list(result.fields["context_messages"])
        if result.response is not None:
            frame.final_text = result.response
            return BEFORE_OUTPUT
    return LLM


async def past_turns(run: TurnRun) -> list[Any]:
    """Return the lane's last turns that fit into this turn's prompt."""
    if run.past is None:
        config = run.environment.config
        timeline = await run.environment.timelines.of(*run.frame.lane)
        run.past = timeline.within(
            config.int("core.agent.max_context_size"),
            (await budgets(run))[1],
            config.int("core.agent.context.protected_count"),
        )
    return run.past


async def prefix(run: TurnRun) -> list[dict[str, Any]]:
    """Return the messages up to and including the input."""
    if run.prefix is None:
        frame, prompts = run.frame, run.environment.prompts
        run.prefix = frame.context or [
            prompts.fixed(fixed_parts(run)),
            *prompts.timeline(await past_turns(run)),
            prompts.input(
                frame.raw_message,
                now=frame.accepted_at,
                channel=frame.channel,
                speaker=frame.speaker,
                hits=frame.hits,
                memory_state=frame.memory_state,
            ),
        ]
    return run.prefix


def fixed_parts(run: TurnRun) -> PromptParts:
    """Return what the fixed part of the prompt is made of."""
    config = run.environment.config
    return PromptParts(
        system_prompt=config.text("core.agent.system_prompt"),
        persona=config.text("core.agent.personal_prompt"),
        catalogue=run.environment.tools.offer(run.frame.fetched).catalogue,
    )


async def budgets(run: TurnRun) -> tuple[int, int]:
    """Return how many tokens memory and timeline may have (reference/memory.md §1.4).

    target = window x utilisation, capped; available = target - fixed part - input; the memory gets a third.
    """
    environment, frame = run.environment, run.frame
    config = environment.config
    source = await environment.sources.choose(frame.model)
    target = source.context_window * config.int("core.agent.context.utilization_percent") // 100
    cap = config.int("core.agent.context.max_target_tokens")
    if cap > 0:
        target = min(target, cap)
    fixed = estimate_messages([environment.prompts.fixed(fixed_parts(run))]) + environment.tools.offer(
        frame.fetched
    ).tokens * int(source.takes_tools)
    used = (fixed + estimate_tokens(frame.raw_message)) * environment.correction.factor(source.name)
    available = max(0, int(target - used)) >> frame.shrunk
    ratio = config.int("core.agent.context.memory_ratio_percent")
    memory = available * ratio // 100 if ratio else available // 3
    return memory, available - memory
