"""What the decorators of a plugin collect, as the kernel hears of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin.messages import STAGES, TOOL_STAGES
from homeagent_sdk.plugin.schema import ToolSchema, tool_schema

AnyFunction = Callable[..., Any]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHANNEL_NAME_LIMIT = 64 - len("output_send__") - len("_help")
_CHANNEL_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_CHANNEL_NAME_LIMIT}}}")


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """A function that the model may call."""

    name: str
    function: AnyFunction
    no_memory: bool
    parallel_safe: bool
    serial: bool
    idempotent: bool
    timeout_s: float | None
    requires_approval: bool

    def schema(self) -> ToolSchema:
        """Read the schema off the function; raises :class:`Invalid` where it has none."""
        return tool_schema(self.name, self.function)

    def to_wire(self, schema: ToolSchema) -> dict[str, Any]:
        """Return the entry for ``kernel.register``."""
        flags = ("no_memory", "parallel_safe", "serial", "idempotent", "timeout_s", "requires_approval")
        return {
            "name": self.name,
            "description": schema.description,
            "parameters": schema.parameters(),
            "flags": {flag: getattr(self, flag) for flag in flags},
        }


@dataclass(frozen=True, slots=True)
class StageDeclaration:
    """A function that watches or changes a stage of every turn."""

    stage: str
    function: AnyFunction
    changes: frozenset[str]
    scope: Literal["global", "own_tools"]
    priority: int
    timeout_s: float
    required: bool

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for ``kernel.register``."""
        return {
            "stage": self.stage,
            "scope": self.scope,
            "changes": sorted(self.changes),
            "priority": self.priority,
            "timeout_s": self.timeout_s,
            "required": self.required,
        }


@dataclass(frozen=True, slots=True)
class OutputDeclaration:
    """A channel that messages can be sent over."""

    name: str
    function: AnyFunction
    flags: int
    description: str
    synchronous: bool
    redelivery: Literal["at_least_once", "at_most_once"]

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for ``kernel.register``."""
        keys = ("name", "flags", "description", "synchronous", "redelivery")
        return {key: int(self.flags) if key == "flags" else getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class InputDeclaration:
    """A channel that inputs come from."""

    name: str
    description: str

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for ``kernel.register``."""
        return {"name": self.name, "description": self.description}


def check_tool(tool: ToolDeclaration) -> None:
    """Raise :class:`Invalid` where a tool's options cannot be."""
    if not _TOOL_NAME.fullmatch(tool.name):
        raise Invalid(
            f"{tool.name!r} cannot be the name of a tool",
            hint="use 1 to 64 of A-Z a-z 0-9 _ -; one bad name makes a model refuse the whole request",
        )
    if tool.timeout_s is not None and tool.timeout_s <= 0:
        raise Invalid(f"tool {tool.name}: timeout_s must be more than 0 seconds")


def check_stage(stage: StageDeclaration) -> None:
    """Raise :class:`Invalid` where a stage handler asks for what its stage does not offer."""
    allowed = STAGES.get(stage.stage)
    if allowed is None:
        raise Invalid(f"there is no stage {stage.stage!r}", hint=f"the stages are {', '.join(STAGES)}")
    refused = sorted(stage.changes - allowed)
    if refused:
        offered = ", ".join(sorted(allowed)) or "nothing"
        raise Invalid(f"stage {stage.stage} cannot change {', '.join(refused)}", hint=f"it may change {offered}")
    if stage.scope not in ("global", "own_tools"):
        raise Invalid(f"stage {stage.stage}: there is no scope {stage.scope!r}", hint="use global or own_tools")
    if stage.scope == "own_tools" and stage.stage not in TOOL_STAGES:
        raise Invalid(f"stage {stage.stage} has no tool, so its scope is global", hint="leave scope out")
    if stage.timeout_s <= 0:
        raise Invalid(f"stage {stage.stage}: timeout_s must be more than 0 seconds")


def check_channel(name: str) -> None:
    """Raise :class:`Invalid` where a channel's name cannot become part of a tool's name."""
    if not _CHANNEL_NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a channel", hint=f"use 1 to {_CHANNEL_NAME_LIMIT} of A-Z a-z 0-9 _ -"
        )
