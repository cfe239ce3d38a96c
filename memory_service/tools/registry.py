"""The memory's tools: told to the kernel at each welcome, and run when a model calls them.

A part of the memory that has tools makes :class:`MemoryTool` of them and hands them to :meth:`ToolRegistry.add`. A tool
gets its arguments as :class:`~memory_service.fields.Fields`, whose complaints name the field, and who asks; it returns
a text, or a structure that becomes JSON, and raises the typed errors for what it refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from homeagent_sdk.bus.abc import BusPeer, CallContext
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import (
    Conflict,
    HomeAgentError,
    Internal,
    Invalid,
    NotFound,
    Overloaded,
    TimedOut,
    Unavailable,
)
from memory_service.fields import Fields

_PASSING = (Unavailable, TimedOut, Overloaded)
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_log = structlog.get_logger("memory_tools")


@dataclass(frozen=True, slots=True)
class Asking:
    """The turn in which a tool is called, and for whom.

    :ivar call_id: the same if the kernel repeats the call
    :ivar principal: whose turn it is
    :ivar speaker: the name of who spoke; never use it to decide what somebody may see
    :ivar audience: the principals who will read the answer; what one of them may not see is not shown. Never empty
    """

    turn_id: str
    call_id: str
    channel: str
    conversation: str
    principal: str
    speaker: str
    audience: tuple[str, ...]


Run = Callable[[Fields, Asking], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """Something that the model may ask of the memory.

    :ivar description: short, since every prompt pays for it
    :ivar properties: JSON schemas of the arguments, by name
    :ivar required: the arguments that must be there
    :ivar run: may raise typed errors, which the model is told with field and hint
    :ivar no_memory: what it returns is kept with the turn, but never searchable: recalled text must not be remembered
        as if it had been said again
    :ivar always: it is shown to the model even where there is no room for all tools
    """

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    run: Run
    required: tuple[str, ...] = ()
    no_memory: bool = True
    parallel_safe: bool = False
    idempotent: bool = False
    timeout_s: float = 30.0
    always: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the entry for ``kernel.register``."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": {
                "type": "object",
                "properties": {name: dict(schema) for name, schema in self.properties.items()},
                "required": list(self.required),
                "additionalProperties": False,
            },
            "flags": {
                "no_memory": self.no_memory,
                "parallel_safe": self.parallel_safe,
                "idempotent": self.idempotent,
                "timeout_s": self.timeout_s,
                "always": self.always,
            },
        }


class ToolRegistry:
    """All tools of the memory, and the way from the bus to them."""

    def __init__(self, peer: BusPeer) -> None:
        self._peer = peer
        self._tools: dict[str, MemoryTool] = {}

    def add(self, tools: Iterable[MemoryTool]) -> None:
        """Take in tools; call it before the peer starts.

        :raises Conflict: there is one of that name already
        """
        for tool in tools:
            if tool.name in self._tools:
                raise Conflict(f"the memory has a tool {tool.name} already", field="name")
            self._tools[tool.name] = tool

    def serve(self) -> None:
        """Answer ``memory.tool``, and tell every kernel of the tools; call it before the peer starts."""
        self._peer.serve("memory.tool", self.run)
        self._peer.on_welcome(self.register)

    async def register(self) -> None:
        """Tell the kernel of the tools, again until it listens; without them the memory works all the same."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._peer.call("kernel.register", self._registration(), idempotent=True)
                return
            except _PASSING as error:
                _log.info("the kernel does not take the memory's tools yet", reason=str(error))
            except HomeAgentError as error:
                _log.error("the kernel refuses the memory's tools", reason=str(error), field=error.field)
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def run(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Run a tool; what it refuses comes back as an error that the model can read.

        :returns: ``{content, is_error, error?: {field, reason, detail, hint}}``
        :raises NotFound: there is no such tool
        :raises Invalid: the call does not say for whom it is
        """
        fields = Fields(body)
        tool = self._tools.get(fields.name("tool"))
        if tool is None:
            raise NotFound(f"the memory has no tool {fields.name('tool')!r:.100}", field="tool")
        asking = _asking(fields.inside("context"))
        try:
            return {"content": await tool.run(_arguments(tool, fields), asking), "is_error": False}
        except HomeAgentError as error:
            return _refused(error)
        except Exception:
            _log.exception("a tool of the memory failed", tool=tool.name, turn=asking.turn_id)
            hint = "the arguments need not be at fault; the memory's log says more"
            return _refused(Internal(f"{tool.name} failed", hint=hint))

    def _registration(self) -> dict[str, Any]:
        tools = [tool.to_wire() for tool in self._tools.values()]
        return {"generation": 1, "tools": tools, "stages": [], "outputs": [], "inputs": []}


def _arguments(tool: MemoryTool, fields: Fields) -> Fields:
    """Return the arguments if they are those that the tool takes; their values are its own to check."""
    given: dict[Any, Any] = fields.take("arguments", dict, {})
    hint = f"it takes {', '.join(tool.properties) or 'no arguments'}"
    for name in given:
        if name not in tool.properties:
            raise Invalid(f"{tool.name} has no argument {name!r:.100}", field=f"{name!s:.100}", hint=hint)
    read = Fields(given)
    for name in tool.required:
        if not read.has(name):
            raise Invalid(f"{tool.name} needs {name}", field=name, hint=hint)
    return read


def _asking(context: Fields) -> Asking:
    audience = context.names("audience")
    if not audience:
        # Nobody may see everything: an empty audience must not mean that no rule applies.
        raise Invalid(text("memory.empty_audience"), field="context.audience", hint=text("memory.empty_audience_hint"))
    principal = context.name("principal")
    return Asking(
        turn_id=context.name("turn_id"),
        call_id=context.text("call_id", default=""),
        channel=context.text("channel", default=""),
        conversation=context.text("conversation", default=""),
        principal=principal,
        speaker=context.text("speaker", default="") or principal,
        audience=audience,
    )


def _refused(error: HomeAgentError) -> dict[str, Any]:
    told = {"field": error.field, "reason": error.code, "detail": error.message, "hint": error.hint}
    return {"content": None, "is_error": True, "error": told}
