"""The tool loop: validate, let plugins approve, run, let plugins see the result, tell the model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError, NotFound, TimedOut, Unavailable
from kernel.errors import RequiredHandlerFailed
from kernel.tools import KERNEL, SERVICES, ArgumentsRefused, Tool, check_arguments, plan
from kernel.turns import own_tools
from kernel.turns.environment import TurnRun
from kernel.turns.frame import BEFORE_OUTPUT, FINISHED, LLM, STARTED, ToolCall
from kernel.turns.tool_messages import as_content, close_batch

MOST_CALLS_A_BATCH: Final = 32
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
        answer = await _run_group(run, [waiting[position] for position in group])
        if answer is not None:
            frame.final_text = answer
            close_batch(frame)
            return BEFORE_OUTPUT
    _check_limits(run, close_batch(frame))
    return LLM


async def _run_group(run: TurnRun, calls: list[ToolCall]) -> str | None:
    """Run calls at the same time; returns the answer with which a plugin ended the loop, if one did.

    Where one of them must end the turn, the others are cancelled before it does: nothing runs on unseen.
    """
    if len(calls) == 1:
        return await _run_call(run, calls[0])
    tasks = [asyncio.create_task(_run_call(run, call), name=f"tool {call.name}") for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        answers = [task.result() for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return next((answer for answer in answers if answer is not None), None)


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
    """Run one call, or say why not; returns the answer with which a plugin ended the loop, if one did."""
    tools = run.environment.tools
    tool = tools.find(call.name)
    if call.state == STARTED and not (tool is not None and tool.flags.idempotent):
        call.has_run = True
        call.is_private = tool is not None and tool.flags.no_memory
        _refuse(call, _UNKNOWN_OUTCOME)
        return None
    try:
        tool = tools.get(call.name)
        arguments = tools.arguments(tool, call.arguments)
    except ArgumentsRefused as error:
        _refuse(call, _what_is_wrong(error))
        return None
    except NotFound as error:
        _refuse(call, _why_there_is_none(run, call, error))
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
    before = await run.run_stage("before_toolcall", {"tool": call.name, "arguments": arguments}, tool.plugin)
    if before.response is not None:
        _refuse(call, f"Rejected: {before.response}" if before.response else "Rejected by a plugin.")
        return None
    if before.fields["arguments"] != arguments:
        try:
            arguments = check_arguments(tool.parameters, before.fields["arguments"])
        except ArgumentsRefused as error:
            _refuse(call, f"A plugin changed the arguments to ones that the tool does not take: {error.message}")
            return None
    output = await _execute(run, call, tool, arguments)
    after = await run.run_stage("after_toolcall", {"tool": call.name, "result": output}, tool.plugin)
    call.content = as_content(after.fields["result"])
    call.state = FINISHED
    if not tool.flags.idempotent and any(other.state != FINISHED for other in run.frame.calls):
        await run.save()  # of the last one, the whole batch is recorded at once
    return after.response


async def _execute(run: TurnRun, call: ToolCall, tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Run the tool; returns its result, or what the model is told of its failure."""
    call.has_run = True
    if not tool.flags.idempotent:
        call.state = STARTED
        await run.save()
    limit_s = tool.flags.timeout_s or run.environment.config.duration("core.agent.tool_timeout")
    try:
        if tool.plugin == KERNEL:
            return await own_tools.run(run, call, arguments)
        return await _call_plugin(run, call, tool, arguments, limit_s)
    except RequiredHandlerFailed:
        raise
    except HomeAgentError as error:
        call.is_error = True
        return _problem(tool, error, limit_s)


async def _call_plugin(run: TurnRun, call: ToolCall, tool: Tool, arguments: Mapping[str, Any], limit_s: float) -> Any:
    context = {**run.context, "call_id": f"{run.frame.turn_id}-{call.call_id}"}
    if tool.plugin in SERVICES:
        context["audience"] = [run.frame.principal]
    body = {"tool": call.name, "arguments": dict(arguments), "context": context}
    answer = await run.environment.bus.call(
        f"{tool.plugin}.tool", body, timeout_s=limit_s, idempotent=tool.flags.idempotent
    )
    if not isinstance(answer, dict):
        call.is_error = True
        return {"reason": "internal", "detail": f"{_named(tool.plugin)} answered with something that is no result."}
    call.is_error = bool(answer.get("is_error"))
    return answer.get("error") if call.is_error and answer.get("error") else answer.get("content")


def _problem(tool: Tool, error: HomeAgentError, limit_s: float) -> dict[str, Any]:
    """Return what the model is told; it must be true: what cannot be known is not claimed."""
    if isinstance(error, TimedOut):
        detail = f"{tool.name} gave no result within {limit_s:g} s. It was told to stop but may still be running."
        return {"reason": "timeout", "detail": detail}
    if isinstance(error, Unavailable) and error.detail.get("bus"):
        detail = _restarting(tool.plugin)
        if error.detail.get("sent") and not tool.flags.idempotent:
            detail += " The call may or may not have run."
        return {"reason": "unavailable", "detail": detail}
    return {"reason": error.code, "detail": error.message, **({"hint": error.hint} if error.hint else {})}


def _restarting(plugin: str) -> str:
    return f"{_named(plugin)} is unavailable, restarting."


def _named(owner: str) -> str:
    return f"The {owner} service" if owner in SERVICES else f"The plugin {owner}"


def _why_there_is_none(run: TurnRun, call: ToolCall, error: NotFound) -> str:
    plugin = run.environment.absent_tools.get(call.name)
    if plugin is None:
        return str(error)
    return as_content({"reason": "unavailable", "detail": f"{_restarting(plugin)} The call was not made."})


def _what_is_wrong(error: ArgumentsRefused) -> str:
    return as_content({"error": "invalid arguments", "problems": [problem.to_wire() for problem in error.problems]})


def _refuse(call: ToolCall, reason: str) -> None:
    call.is_error = True
    call.content = reason
    call.state = FINISHED


async def _announce(run: TurnRun, call: ToolCall, tool: Tool) -> None:
    status = "failed" if call.is_error else "ok"
    run.feed.tool(call.name, status)
    await run.publish("tool.call", {"tool": call.name, "plugin": tool.plugin, "status": status})
