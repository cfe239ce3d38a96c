"""A turn is data: everything that a turn knows, so that it can be saved after a step and go on from there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import msgpack

from homeagent_sdk.errors import Invalid

SCHEMA_VERSION: Final = 1

RECEIVED = "received"
ON_INPUT = "on_input"
RECALL = "recall"
PRE_ACTION = "pre_action"
LLM = "llm"
POST_ACTION = "post_action"
TOOLS = "tools"
BEFORE_OUTPUT = "before_output"
EMIT = "emit"
AFTER_OUTPUT = "after_output"
DONE = "done"

WAITING, STARTED, FINISHED = "waiting", "started", "finished"
"""How far a tool call has come."""


@dataclass(slots=True)
class ToolCall:
    """One call that the model asked for.

    :ivar arguments: the JSON text as the model wrote it
    :ivar content: what the model is told; None until then
    :ivar output: the tool's own result, before it was made a text
    :ivar is_private: the tool is flagged ``no_memory``: its output is kept out of the memory
    """

    call_id: str
    name: str
    arguments: str
    state: str = WAITING
    content: str | None = None
    output: Any = None
    is_error: bool = False
    is_private: bool = False


@dataclass(slots=True)
class Usage:
    """Tokens that the turn has cost so far, over all its model calls."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0

    def add(self, reported: dict[str, Any]) -> None:
        """Add what one model call reported."""
        for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"):
            setattr(self, name, getattr(self, name) + int(reported.get(name) or 0))


@dataclass(slots=True)
class TurnFrame:
    """One turn, from the accepted input to its outcome.

    :ivar channel: with ``conversation``, the lane
    :ivar kind: ``user``, or ``self`` for what the agent asks itself (a timer that fires)
    :ivar level: L1 background to L4 critical
    :ivar text: the input as it came; ``raw_message`` is what the stage on_input made of it
    :ivar accepted_at: wall clock, seconds since 1970
    :ivar hits: what the memory service recalled
    :ivar memory_state: ``ok``, ``no_record`` or ``unreachable``
    :ivar context: messages before the input, if the stage pre_action changed them
    :ivar tail: messages after the input: the model's calls and their results
    :ivar calls: the batch of tool calls that is being worked on
    :ivar fetched: plugins whose schemas the model asked for with get_plugin_tools
    :ivar recent_calls: digests of (call, result) for the loop breaker, the newest last
    :ivar is_wrapping_up: a limit was reached, so the model gets one call without tools
    """

    turn_id: str
    channel: str
    conversation: str
    principal: str
    text: str
    accepted_at: float
    speaker: str = ""
    kind: str = "user"
    level: str = "L2"
    delivery_id: str | None = None
    no_memory: bool = False
    model: str = "auto"
    trace: str = ""
    step: str = RECEIVED
    raw_message: str = ""
    hits: list[dict[str, Any]] = field(default_factory=list)
    memory_state: str = "ok"
    context: list[dict[str, Any]] | None = None
    tail: list[dict[str, Any]] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    tool_turns: int = 0
    fetched: list[str] = field(default_factory=list)
    recent_calls: list[list[str]] = field(default_factory=list)
    tools_used: list[str] = field(default_factory=list)
    tool_results: list[dict[str, Any]] = field(default_factory=list)
    is_wrapping_up: bool = False
    shrunk: int = 0
    llm_text: str = ""
    reasoning: str = ""
    final_text: str | None = None
    finish_reason: str = "stop"
    is_partial: bool = False
    used_model: str = ""
    usage: Usage = field(default_factory=Usage)

    @property
    def lane(self) -> tuple[str, str]:
        """Channel and conversation."""
        return self.channel, self.conversation

    def pack(self) -> bytes:
        """Return the frame as MessagePack."""
        return msgpack.packb(asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def unpack(cls, data: bytes, schema_version: int) -> TurnFrame:
        """Read a frame that this or an earlier program saved; fields that it does not have keep their default.

        :raises Invalid: a newer program saved it, or it is damaged
        """
        if schema_version > SCHEMA_VERSION:
            raise Invalid(
                f"the frame has schema {schema_version}, this program knows {SCHEMA_VERSION}",
                hint="start the newer HomeAgent again",
            )
        values = msgpack.unpackb(data, strict_map_key=False)
        if not isinstance(values, dict):
            raise Invalid("the frame is damaged")
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        values["calls"] = [ToolCall(**call) for call in values.get("calls", [])]
        values["usage"] = Usage(**values.get("usage", {}))
        return cls(**values)
