"""What handlers of a plugin are given and what they give back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any, Literal

STAGES: dict[str, frozenset[str]] = {
    "on_input": frozenset({"raw_message", "response"}),
    "pre_action": frozenset({"context_messages", "response"}),
    "post_action": frozenset({"text", "tool_calls", "response"}),
    "before_toolcall": frozenset({"arguments", "response"}),
    "after_toolcall": frozenset({"result", "response"}),
    "before_output": frozenset({"final_text", "response"}),
    "after_output": frozenset(),
}
"""Stage → the fields that a handler of it may change."""

TOOL_STAGES = frozenset({"before_toolcall", "after_toolcall"})
"""The stages that may have the scope ``own_tools``."""


class OutputFlags(IntFlag):
    """What an output channel can carry."""

    TEXT = 1
    FILE = 2
    IMAGE = 4
    AUDIO = 8
    STRUCTURED = 16


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool call comes from. A parameter annotated with this class receives it and is not shown to the model."""

    turn_id: str = ""
    call_id: str = ""
    channel: str = ""
    conversation: str = ""
    principal: str = ""
    speaker: str | None = None
    """Who spoke, as the channel named them; never use it to decide what someone may do, use ``principal``."""

    @classmethod
    def from_wire(cls, body: Any) -> ToolContext:
        """Build it from the ``context`` of a call; keys that this version does not know are left out."""
        known = body if isinstance(body, dict) else {}
        texts = {key: str(known.get(key) or "") for key in _CONTEXT_TEXTS}
        return cls(**texts, speaker=known.get("speaker"))


_CONTEXT_TEXTS = ("turn_id", "call_id", "channel", "conversation", "principal")


@dataclass(frozen=True, slots=True)
class StageCall:
    """One run of a stage handler. Return a dict of the fields to change, or None."""

    stage: str
    fields: Mapping[str, Any]
    """The fields of the frame that this stage shows, by name."""
    context: ToolContext

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """One message to send over an output channel."""

    output_id: str
    """The same for every attempt to send this message."""
    channel: str
    payload: Any
    type: str = "text"
    meta: Mapping[str, Any] = field(default_factory=dict)
    conversation: str = ""
    principal: str = ""

    @classmethod
    def from_wire(cls, body: Mapping[str, Any]) -> OutputMessage:
        """Build it from the body of a call."""
        meta = body.get("meta")
        return cls(
            output_id=str(body["output_id"]),
            channel=str(body["channel"]),
            payload=body.get("payload"),
            type=str(body.get("type") or "text"),
            meta=meta if isinstance(meta, dict) else {},
            conversation=str(body.get("conversation") or ""),
            principal=str(body.get("principal") or ""),
        )


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an output: ``ok`` only if its arrival is known, ``unconfirmed`` if it is not."""

    status: Literal["ok", "unconfirmed", "failed"]
    note: str = ""

    def to_wire(self) -> dict[str, Any]:
        """Return the body of the reply."""
        return {"status": self.status, "note": self.note}
