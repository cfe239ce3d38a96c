"""The model's steps: ask it, and let plugins see what it said."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError, Unavailable
from kernel.prompt import estimate_messages
from kernel.turns import input_steps
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, LLM, POST_ACTION, TOOLS, ToolCall

_CALL_TIMEOUT_S: Final = 180.0
_PROVIDER_RESTARTS: Final = 5
"""How often a request is made again because the provider service died under it."""
_PAUSE_S: Final = 0.2
_MOST_SHRINKS: Final = 2
_DELTA_EVENT_S: Final = 0.1
_DELTA_EVENT_CHARACTERS: Final = 12_000
"""Keeps an event below 64 KiB whatever the script."""
_log = structlog.get_logger("turns")


async def ask(run: TurnRun) -> str:
    """Ask the model; its text goes to the followers while it comes."""
    frame, environment = run.frame, run.environment
    request = await _request(run)
    estimated = estimate_messages(request["messages"])
    try:
        done = await _answer(run, request)
    except HomeAgentError as error:
        if error.detail.get("context_full") and frame.shrunk < _MOST_SHRINKS:
            _log.info("prompt too long; trying with half the context", turn=frame.turn_id)
            frame.shrunk += 1
            run.past = run.prefix = frame.context = None
            return LLM
        raise
    message = done["message"]
    frame.usage.add(done.get("usage") or {})
    offer = environment.tools.offer(frame.fetched)
    environment.correction.learn(
        str(done.get("source", "")),
        estimated + (offer.tokens if request["tools"] else 0),
        int((done.get("usage") or {}).get("prompt_tokens") or 0),
    )
    frame.llm_text = str(message.get("content") or "")
    frame.reasoning = str(message.get("reasoning") or "")
    frame.finish_reason = str(done.get("finish_reason") or "stop")
    frame.is_partial = bool(done.get("partial"))
    frame.used_model = str(done.get("model") or "")
    calls = [] if frame.is_wrapping_up or frame.is_partial else message.get("tool_calls") or []
    frame.calls = [ToolCall(str(call["id"]), str(call["name"]), str(call["arguments"])) for call in calls]
    await run.publish(
        "agent_llm_chain",
        {
            "content": frame.llm_text[:8000],
            "tool_calls": [call.name for call in frame.calls],
            "source": done.get("source"),
            "model": frame.used_model,
            "usage": asdict(frame.usage),
        },
    )
    return POST_ACTION


async def post_action(run: TurnRun) -> str:
    """Plugins see text and tool calls; one may change them, or end the loop with its own answer."""
    frame = run.frame
    if run.environment.stages.handlers("post_action"):
        calls = [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in frame.calls]
        result = await run.run_stage("post_action", {"text": frame.llm_text, "tool_calls": calls})
        frame.llm_text = str(result.fields["text"])
        frame.calls = [
            ToolCall(str(call["id"]), str(call["name"]), str(call.get("arguments") or "{}"))
            for call in result.fields["tool_calls"]
        ]
        if result.response is not None:
            frame.calls = []
            frame.final_text = result.response
            return BEFORE_OUTPUT
    if frame.calls:
        return TOOLS
    frame.final_text = frame.llm_text
    return BEFORE_OUTPUT


async def _request(run: TurnRun) -> dict[str, Any]:
    frame, environment = run.frame, run.environment
    messages = [*await input_steps.prefix(run), *frame.tail]
    source = await environment.sources.choose(frame.model)
    tools = list(environment.tools.offer(frame.fetched).schemas) if source.takes_tools else []
    return {
        "messages": messages,
        "tools": tools,
        "tool_choice": ("none" if frame.is_wrapping_up else "auto") if tools else None,
        "temperature": environment.config.float("core.llm.temperature"),
        "max_tokens": min(environment.config.int("core.llm.max_tokens"), max(256, source.context_window // 4)),
        "model": frame.model,
    }


async def _answer(run: TurnRun, request: dict[str, Any]) -> dict[str, Any]:
    """Make the request, and make it again if the provider service dies under it."""
    for attempt in range(1, _PROVIDER_RESTARTS + 2):
        try:
            return await _stream(run, request)
        except Unavailable as error:
            run.feed.reset()
            if not error.detail.get("bus") or attempt > _PROVIDER_RESTARTS:
                raise
            _log.warning("the provider service is away; asking again", turn=run.frame.turn_id, attempt=attempt)
        await asyncio.sleep(_PAUSE_S * attempt)
    raise AssertionError("the loop returns or raises")


async def _stream(run: TurnRun, request: dict[str, Any]) -> dict[str, Any]:
    frame, bus = run.frame, run.environment.bus
    body = {
        "request": request,
        "reason": "turn" if frame.kind == "user" else "self",
        "turn_id": frame.turn_id,
        "lane": {"channel": frame.channel, "conversation": frame.conversation},
    }
    loop = asyncio.get_running_loop()
    unpublished, published_at = "", loop.time()
    async with bus.stream("provider.chat", body, timeout_s=_CALL_TIMEOUT_S) as items:
        async for item in items:
            kind = item["type"]
            if kind == "delta":
                run.feed.delta(item["text"])
                unpublished += item["text"]
                if loop.time() - published_at >= _DELTA_EVENT_S:
                    await _publish_delta(run, unpublished)
                    unpublished, published_at = "", loop.time()
            elif kind == "reasoning":
                run.feed.reasoning(item["text"])
            elif kind == "done":
                await _publish_delta(run, unpublished)
                return dict(item)
    raise Unavailable("the model's answer ended without an end", hint="try again")


async def _publish_delta(run: TurnRun, text: str) -> None:
    for start in range(0, len(text), _DELTA_EVENT_CHARACTERS):
        await run.publish("llm.delta", {"text": text[start : start + _DELTA_EVENT_CHARACTERS]})
