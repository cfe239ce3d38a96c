"""The tool loop: validate, let plugins approve, run, let plugins see the result, tell the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError, NotFound, TimedOut, Unavailable
from kernel.tools import KERNEL, ArgumentsRefused, LoopBreaker, Tool, plan
from kernel.turns import own_tools
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, FINISHED, LLM, STARTED, ToolCall

MOST_CALLS_A_BATCH: Final = 32
_MOST_CONTENT_CHARACTERS: Final = 200_000
_UNKNOWN_OUTCOME: Final = (
    "This call had started when the system was interrupted. It may or may not have run; check before you repeat it."
)
_NOBODY_TO_APPROVE: Final = (
    "This tool needs a person's approval for each call, and nobody can be asked here. Tell the person what you wanted "
    "to do; do not try again."
)
_WRAP_UP: Final = "Report briefly what was done, what was found and what is still open. No further tools can be called."
_log = structlog.get_logger("turns")


async def run_batch(run: TurnRun) -> str:
    """Work through the calls of one model answer, in the groups that may run at the same time."""
    frame, tools = run.frame, run.environment.tools
    for call in frame.calls[MOST_CALLS_A_BATCH:]:
        _refuse(call, f"Only {MOST_CALLS_A_BATCH} calls are run at once; this one was not.")
    waiting = [call for call in frame.calls if call.state != FINISHED]
    for group in plan([tools.find(call.name) for call in waiting]):
        responses = await asyncio.gather(*(_run_call(run, waiting[position]) for position in group))
        ended = [response for response in responses if response is not None]
        if ended:
            frame.final_text = ended[0]
            _tell_model(run)
            return BEFORE_OUTPUT
    looping = _tell_model(run)
    _check_limits(run, looping)
    return LLM


def _tell_model(run: TurnRun) -> str | None:
    """Put the batch into the messages: one assistant message with all calls, then the results in index order.

    Returns what goes round in circles, if something does.
    """
    frame, breaker = run.frame, LoopBreaker(run.frame.recent_calls)
    looping: str | None = None
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in frame.calls
    ]
    frame.tail.append({"role": "assistant", "content": frame.llm_text or None, "tool_calls": calls})
    for call in frame.calls:
        content = call.content or _UNKNOWN_OUTCOME
        frame.tail.append({"role": "tool", "tool_call_id": call.call_id, "content": content})
        if call.name not in frame.tools_used:
            frame.tools_used.append(call.name)
        frame.tool_results.append({"name": call.name, "output": content[:8000], "no_memory": call.is_private})
        looping = breaker.see(call.name, call.arguments, content) or looping
    frame.calls = []
    frame.tool_turns += 1
    return looping


def _check_limits(run: TurnRun, looping: str | None) -> None:
    frame = run.frame
    limit = run.environment.config.int("core.agent.max_tool_turns")
    if limit and frame.tool_turns >= limit:
        reason = f"The limit of {limit} rounds of tool calls is reached. {_WRAP_UP}"
    elif looping is not None:
        reason = f"Stopped: {looping}. {_WRAP_UP}"
    else:
        return
    _log.warning("tool loop ended", turn=frame.turn_id, tool_turns=frame.tool_turns, reason=reason)
    frame.is_wrapping_up = True
    frame.tail.append({"role": "user", "content": reason})


async def _run_call(run: TurnRun, call: ToolCall) -> str | None:
    """Run one call; returns the answer with which a plugin ended the loop, if one did."""
    tools = run.environment.tools
    try:
        tool = tools.get(call.name)
        if call.state == STARTED and not tool.flags.idempotent:
            _refuse(call, _UNKNOWN_OUTCOME)
            return None
        arguments = tools.arguments(tool, call.arguments)
    except ArgumentsRefused as error:
        _refuse(call, as_content({"error": "invalid arguments", "problems": [p.to_wire() for p in error.problems]}))
        return None
    except NotFound as error:
        _refuse(call, str(error))
        return None
    if tool.flags.requires_approval:
        _refuse(call, _NOBODY_TO_APPROVE)
        return None
    call.is_private = tool.flags.no_memory
    run.feed.tool(call.name, "started")
    response = await _run_approved(run, call, tool, arguments)
    await _announce(run, call, tool)
    return response


async def _run_approved(run: TurnRun, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    fields = {"tool": call.name, "arguments": dict(arguments)}
    before = await run.run_stage("before_toolcall", fields, tool.plugin)
    if before.response is not None:
        _refuse(call, f"Rejected: {before.response}" if before.response else "Rejected by a plugin.")
        return None
    await _execute(run, call, tool, before.fields["arguments"])
    after = await run.run_stage("after_toolcall", {"tool": call.name, "result": call.output}, tool.plugin)
    if after.fields["result"] != call.output:
        call.output = after.fields["result"]
        call.content = as_content(call.output)
    if not tool.flags.idempotent:
        await run.save()
    return after.response


async def _execute(run: TurnRun, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> None:
    if not tool.flags.idempotent:
        call.state = STARTED
        await run.save()
    limit_s = tool.flags.timeout_s or run.environment.config.duration("core.agent.tool_timeout")
    try:
        if tool.plugin == KERNEL:
            call.output = await own_tools.run(run, call, arguments)
        else:
            await _call_plugin(run, call, tool, arguments, limit_s)
    except HomeAgentError as error:
        call.is_error = True
        call.output = _problem(tool, error, limit_s)
    call.content = as_content(call.output)
    call.state = FINISHED


async def _call_plugin(run: TurnRun, call: ToolCall, tool: Tool, arguments: Mapping[str, Any], limit_s: float) -> None:
    body = {
        "tool": call.name,
        "arguments": dict(arguments),
        "context": {**run.context, "call_id": f"{run.frame.turn_id}-{call.call_id}"},
    }
    answer = await run.environment.bus.call(
        f"{tool.plugin}.tool", body, timeout_s=limit_s, idempotent=tool.flags.idempotent
    )
    call.is_error = bool(answer.get("is_error"))
    call.output = answer.get("error") if call.is_error and answer.get("error") else answer.get("content")


def _problem(tool: Tool, error: HomeAgentError, limit_s: float) -> dict[str, Any]:
    """Return what the model is told; it must be true: what cannot be known is not claimed."""
    if isinstance(error, TimedOut):
        detail = f"{tool.name} gave no result within {limit_s:g} s. It was told to stop but may still be running."
        return {"reason": "timeout", "detail": detail}
    if isinstance(error, Unavailable) and error.detail.get("bus"):
        detail = f"The plugin {tool.plugin} is unavailable, restarting."
        if error.detail.get("sent") and not tool.flags.idempotent:
            detail += " The call may or may not have run."
        return {"reason": "unavailable", "detail": detail}
    return {"reason": error.code, "detail": error.message, "hint": error.hint}


def _refuse(call: ToolCall, reason: str) -> None:
    call.is_error = True
    call.output = call.content = reason
    call.state = FINISHED


def as_content(output: Any) -> str:
    """Return a result as the model reads it: text as it is, structures as compact JSON, cut only where it is huge."""
    if isinstance(output, str):
        content = output
    else:
        content = json.dumps(output, ensure_ascii=False, separators=(",", ":"), default=_bytes_as_text)
    if len(content) > _MOST_CONTENT_CHARACTERS:
        cut = len(content) - _MOST_CONTENT_CHARACTERS
        content = f"{content[:_MOST_CONTENT_CHARACTERS]}\n[{cut} more characters were left out]"
    return content


def _bytes_as_text(value: Any) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes | memoryview) else repr(value)


async def _announce(run: TurnRun, call: ToolCall, tool: Tool) -> None:
    status = "failed" if call.is_error else "ok"
    run.feed.tool(call.name, status)
    await run.publish("tool.call", {"tool": call.name, "plugin": tool.plugin, "status": status})
