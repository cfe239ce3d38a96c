"""The model's steps: ask it, and let plugins see what it said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog

from homeagent_sdk.catalogue import text as catalogue_text
from homeagent_sdk.errors import HomeAgentError, TimedOut, Unavailable
from kernel.prompt import estimate_messages
from kernel.turns import input_steps
from kernel.turns.budget import fitting_tail
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, POST_ACTION, TOOLS, ToolCall

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
    frame = run.frame
    request = await _request(run)
    offered_tokens = (await run.offer()).tokens
    try:
        done = await _answer(run, request)
    except HomeAgentError as error:
        if error.detail.get("context_full") and frame.shrunk < _MOST_SHRINKS:
            _log.info("prompt too long; trying with half the context", turn=frame.turn_id)
            return input_steps.shrink(run)
        raise
    _take_in(run, estimate_messages(request["messages"]) + offered_tokens, done)
    await run.publish(
        "agent_llm_chain",
        {
            "content": frame.llm_text[:8000],
            "tool_calls": [call.name[:64] for call in frame.calls],
            "source": done.get("source"),
            "model": frame.used_model,
            "usage": frame.usage.to_wire(),
        },
    )
    return POST_ACTION


async def post_action(run: TurnRun) -> str:
    """Plugins see text and tool calls; one may change them, or end the loop with its own answer."""
    frame = run.frame
    if run.environment.stages.handlers("post_action"):
        calls = [{"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in frame.calls]
        result = await run.run_stage("post_action", {"text": frame.llm_text, "tool_calls": calls})
        if result.fields["text"] != frame.llm_text or result.fields["tool_calls"] != calls:
            frame.opaque = None  # it vouches for what the model wrote
            frame.llm_text = result.fields["text"]
            _set_calls(run, result.fields["tool_calls"])
        if result.response is not None:
            frame.calls = []
            frame.final_text = result.response
            return BEFORE_OUTPUT
    if frame.calls:
        return TOOLS
    frame.final_text = frame.llm_text
    if frame.is_wrapping_up and not frame.llm_text.strip():
        frame.final_text = catalogue_text("kernel.limit_without_report")
    return BEFORE_OUTPUT


def _take_in(run: TurnRun, estimated_tokens: int, done: Mapping[str, Any]) -> None:
    frame = run.frame
    message, usage = done["message"], done.get("usage") or {}
    frame.usage.add(usage)
    reported = int(usage.get("prompt_tokens") or 0)
    run.environment.correction.learn(str(done.get("source", "")), estimated_tokens, reported)
    frame.llm_text = str(message.get("content") or "")
    frame.opaque = message.get("opaque")
    frame.finish_reason = str(done.get("finish_reason") or "stop")
    frame.is_partial = bool(done.get("partial"))
    frame.used_model = str(done.get("model") or "")
    _set_calls(run, message.get("tool_calls") or ())


def _set_calls(run: TurnRun, calls: Iterable[Mapping[str, Any]]) -> None:
    """Take over the calls, each with an id of its own in this turn: some providers begin anew with every answer.

    A call of an answer that broke off is not made, nor one beyond the limit of tool calls.
    """
    frame = run.frame
    taken = {call["id"] for message in frame.tail for call in message.get("tool_calls") or ()}
    frame.calls = []
    if frame.is_wrapping_up or frame.is_partial:
        return
    for position, call in enumerate(calls):
        call_id, arguments = str(call.get("id") or ""), call.get("arguments")
        if not call_id or call_id in taken:
            call_id = f"call_{frame.tool_turns}_{position}"
        taken.add(call_id)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
        frame.calls.append(ToolCall(call_id, str(call["name"]), text))


async def _request(run: TurnRun) -> dict[str, Any]:
    frame, environment = run.frame, run.environment
    prefix = await input_steps.prefix(run)
    source = await run.source()
    tools = list((await run.offer()).schemas)
    return {
        "messages": [*prefix, *await fitting_tail(run, prefix)],
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
            await run.publish("llm.delta", {"text": "", "reset": True})
            if not error.detail.get("bus") or attempt > _PROVIDER_RESTARTS:
                raise
            _log.warning("the provider service is away; asking again", turn=run.frame.turn_id, attempt=attempt)
        await asyncio.sleep(_PAUSE_S * attempt)
    raise AssertionError("the loop returns or raises")


async def _stream(run: TurnRun, request: dict[str, Any]) -> dict[str, Any]:
    """Follow one answer; what a model said before its time was over is kept, as what it said before it broke down."""
    frame = run.frame
    body = {
        "request": request,
        "reason": "turn" if frame.kind == "user" else "self",
        "turn_id": frame.turn_id,
        "lane": {"channel": frame.channel, "conversation": frame.conversation},
    }
    said = _Said(run)
    try:
        async with run.environment.bus.stream("provider.chat", body, timeout_s=_CALL_TIMEOUT_S) as items:
            async for item in items:
                kind = item["type"]
                if kind == "delta":
                    await said.add(item["text"])
                elif kind == "reasoning":
                    said.think(item["text"])
                elif kind == "start":
                    said.source = item
                elif kind == "done":
                    await said.flush()
                    return dict(item)
    except TimedOut:
        if not said.text:
            raise
        await said.flush()
        return said.as_partial()
    raise Unavailable("the model's answer ended without an end", hint="try again")


class _Said:
    """The text of one answer as it comes; on the ring it is put together, several times a second.

    Where a plugin must approve what is said, it is kept back until then: what was shown cannot be taken back.
    """

    def __init__(self, run: TurnRun) -> None:
        stages = run.environment.stages
        guards = (*stages.handlers("post_action"), *stages.handlers("before_output"))
        self._is_guarded = any(handler.spec.required for handler in guards)
        self._run = run
        self._pieces: list[str] = []
        self._unpublished: list[str] = []
        self._clock = asyncio.get_running_loop().time
        self._published_at = self._clock()
        self.source: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def think(self, text: str) -> None:
        if not self._is_guarded:
            self._run.feed.reasoning(text)

    async def add(self, text: str) -> None:
        self._pieces.append(text)
        if self._is_guarded:
            return
        self._run.feed.delta(text)
        self._unpublished.append(text)
        if self._clock() - self._published_at >= _DELTA_EVENT_S:
            await self.flush()

    async def flush(self) -> None:
        text = "".join(self._unpublished)
        self._unpublished, self._published_at = [], self._clock()
        for start in range(0, len(text), _DELTA_EVENT_CHARACTERS):
            await self._run.publish("llm.delta", {"text": text[start : start + _DELTA_EVENT_CHARACTERS]})

    def as_partial(self) -> dict[str, Any]:
        return {
            "message": {"content": self.text},
            "finish_reason": "timeout",
            "source": self.source.get("source"),
            "model": self.source.get("model"),
            "partial": True,
        }
