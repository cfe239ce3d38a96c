"""What the model is told of its tool calls: the batch as messages, and each result as a text."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from kernel.tools import LoopBreaker
from kernel.turns.frame import ToolCall, TurnFrame

_MOST_CONTENT_CHARACTERS: Final = 200_000
_REMEMBERED_CHARACTERS: Final = 8_000
_MOST_REMEMBERED: Final = 200
_NOT_RUN: Final = "Not run: the turn had ended."
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def close_batch(frame: TurnFrame) -> str | None:
    """Put the batch into the messages: one assistant message with all calls, then the results in index order.

    :returns: what goes round in circles, if something does
    """
    breaker, looping = LoopBreaker(frame.recent_calls), None
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": frame.llm_text or None,
        "tool_calls": [_as_written(call) for call in frame.calls],
    }
    if frame.opaque is not None:
        answer["opaque"] = frame.opaque
    frame.tail.append(answer)
    for call in frame.calls:
        content = _NOT_RUN if call.content is None else call.content
        frame.tail.append({"role": "tool", "tool_call_id": call.call_id, "content": content})
        if call.has_run:
            _remember(frame, call, content)
        looping = breaker.see(call.name, call.arguments, content) or looping
    frame.calls = []
    frame.tool_turns += 1
    return looping


def as_content(output: Any) -> str:
    """Return a result as the model reads it: text as it is, structures as compact JSON, cut only where it is huge."""
    if isinstance(output, str):
        content = output
    else:
        try:
            content = json.dumps(output, ensure_ascii=False, separators=(",", ":"), default=_not_json)
        except (TypeError, ValueError, RecursionError):
            content = "[the result cannot be shown: it is no JSON]"
    if len(content) > _MOST_CONTENT_CHARACTERS:
        cut = len(content) - _MOST_CONTENT_CHARACTERS
        content = f"{content[:_MOST_CONTENT_CHARACTERS]}\n[{cut} more characters were left out]"
    return content


def _as_written(call: ToolCall) -> dict[str, Any]:
    """Return a call as providers take it back: a wrong name, or arguments that are no JSON, they refuse."""
    name = _FOREIGN.sub("_", call.name)[:64] or "unknown"
    try:
        arguments = call.arguments if isinstance(json.loads(call.arguments), dict) else "{}"
    except (ValueError, RecursionError):
        arguments = "{}"
    return {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _remember(frame: TurnFrame, call: ToolCall, content: str) -> None:
    if call.name not in frame.tools_used:
        frame.tools_used.append(call.name)
    if len(frame.tool_results) < _MOST_REMEMBERED:
        result = {"name": call.name, "output": content[:_REMEMBERED_CHARACTERS], "no_memory": call.is_private}
        frame.tool_results.append(result)


def _not_json(value: Any) -> str:
    size = value.nbytes if isinstance(value, memoryview) else len(value) if isinstance(value, bytes) else None
    return "<not text>" if size is None else f"<{size} bytes>"
