"""A turn is data: everything that a turn knows, so that it can be saved after a step and go on from there."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
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
DECIDED: Final = frozenset({EMIT, AFTER_OUTPUT, DONE})
"""Steps of a turn whose outcome is settled: it is too late to stop it."""

WAITING, STARTED, FINISHED = "waiting", "started", "finished"
"""How far a tool call has come."""


@dataclass(slots=True)
class ToolCall:
    """One call that the model asked for.

    :ivar call_id: unique within the turn
    :ivar arguments: the JSON text as the model wrote it
    :ivar content: what the model is told; None until then
    :ivar has_run: the tool was called; what was refused before did not run
    :ivar is_private: the tool is flagged ``no_memory``: its output is kept out of the memory
    """

    call_id: str
    name: str
    arguments: str
    state: str = WAITING
    content: str | None = None
    has_run: bool = False
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
        for name in _USAGE:
            setattr(self, name, getattr(self, name) + int(reported.get(name) or 0))

    def to_wire(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in _USAGE}


_USAGE: Final = tuple(each.name for each in fields(Usage))
_CALL: Final = tuple(each.name for each in fields(ToolCall))


@dataclass(slots=True)
class TurnFrame:
    """One turn, from the accepted input to its outcome.

    :ivar channel: with ``conversation``, the lane
    :ivar kind: ``user``, or ``self`` for what the agent asks itself (a timer that fires)
    :ivar level: L1 background to L4 critical
    :ivar text: the input as it came
    :ivar raw_message: what the stage on_input made of it; None: it is as it came
    :ivar accepted_at: wall clock, seconds since 1970
    :ivar hits: what the memory service recalled
    :ivar memory_state: ``ok``, ``no_record`` or ``unreachable``
    :ivar context: messages up to the input, if the stage pre_action changed them
    :ivar tail: messages after the input: the model's calls and their results
    :ivar calls: the batch of tool calls that is being worked on
    :ivar fetched: plugins whose schemas the model asked for with get_plugin_tools
    :ivar recent_calls: digests of (call, result) for the loop breaker, the newest last
    :ivar is_wrapping_up: a limit was reached, so the model gets one call without tools
    :ivar shrunk: how often the context was halved because the model found the prompt too long
    :ivar opaque: what the model's API wants back unchanged with the answer that it came with (signatures, reasoning)
    :ivar is_sending: the answer is on its way over a channel that must not be sent anything twice
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
    raw_message: str | None = None
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
    opaque: dict[str, Any] | None = None
    final_text: str | None = None
    finish_reason: str = "stop"
    is_partial: bool = False
    used_model: str = ""
    is_sending: bool = False
    usage: Usage = field(default_factory=Usage)

    @property
    def lane(self) -> tuple[str, str]:
        """Channel and conversation."""
        return self.channel, self.conversation

    @property
    def message(self) -> str:
        """The input as plugins left it: what the model, the timeline and the memory get."""
        return self.text if self.raw_message is None else self.raw_message

    def pack(self) -> bytes:
        """Return the frame as MessagePack, to go on from."""
        return self._packed(_FRAME)

    def pack_finished(self) -> bytes:
        """Return what is still of use when the turn has its outcome: not the prompt, not the way to the answer."""
        return self._packed(_LASTING)

    def _packed(self, names: tuple[str, ...]) -> bytes:
        values = {name: getattr(self, name) for name in names}
        values["usage"] = self.usage.to_wire()
        if "calls" in values:
            values["calls"] = [{name: getattr(call, name) for name in _CALL} for call in self.calls]
        return msgpack.packb(values)  # type: ignore[no-any-return]

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
        try:
            values = _known(msgpack.unpackb(data, strict_map_key=False), _FRAME)
            values["calls"] = [ToolCall(**_known(call, _CALL)) for call in values.get("calls", [])]
            values["usage"] = Usage(**_known(values.get("usage", {}), _USAGE))
            return cls(**values)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise Invalid(f"the frame is damaged: {error}") from error


_FRAME: Final = tuple(each.name for each in fields(TurnFrame))
_WORKING: Final = frozenset(
    {"hits", "context", "tail", "calls", "recent_calls", "fetched", "llm_text", "opaque", "final_text"}
)
_LASTING: Final = tuple(name for name in _FRAME if name not in _WORKING)


def _known(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}
