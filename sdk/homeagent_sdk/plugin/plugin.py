"""The object that a plugin's ``main.py`` makes; its decorators only collect, the runtime does the wiring."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from homeagent_sdk.bus.abc import BusPeer, EventHandler
from homeagent_sdk.errors import Conflict, Unavailable
from homeagent_sdk.logging import get_logger
from homeagent_sdk.plugin.declarations import (
    InputDeclaration,
    OutputDeclaration,
    StageDeclaration,
    ToolDeclaration,
    check_channel,
    check_stage,
    check_tool,
)
from homeagent_sdk.plugin.messages import OutputFlags
from homeagent_sdk.plugin.settings import Settings
from homeagent_sdk.plugin.turn import Principal, Turn

Function = TypeVar("Function", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[None]]
HookFunction = TypeVar("HookFunction", bound=Hook)
EventFunction = TypeVar("EventFunction", bound=EventHandler)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a running plugin is given; the runtime makes it."""

    name: str
    data_dir: Path
    bus: BusPeer


class Plugin:
    """A plugin: its tools, stages, channels and hooks, and its way to the agent.

    Make one at module level and decorate functions with it. ``name``, ``data_dir``, ``bus`` and what uses the bus are
    there from the first ``on_start`` handler on; before that they raise :class:`Unavailable`.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.tools: dict[str, ToolDeclaration] = {}
        self.stages: dict[str, StageDeclaration] = {}
        self.outputs: dict[str, OutputDeclaration] = {}
        self.inputs: dict[str, InputDeclaration] = {}
        self.start_hooks: list[Hook] = []
        self.stop_hooks: list[Hook] = []
        self.event_handlers: list[tuple[str, EventHandler]] = []
        self._surroundings: Surroundings | None = None

    def tool(
        self,
        *,
        name: str | None = None,
        no_memory: bool = False,
        parallel_safe: bool = False,
        serial: bool = False,
        idempotent: bool = False,
        timeout_s: float | None = None,
        requires_approval: bool = False,
    ) -> Callable[[Function], Function]:
        """Let the model call a function, async or plain (a plain one runs in a thread).

        The model sees its docstring and the schema of its annotations. What it returns must be JSON: None, bool, int,
        float, str, list, dict with text keys, or a dataclass of these. To refuse, raise an error of
        :mod:`homeagent_sdk.errors` with a hint.

        :param name: default: the function's name
        :param no_memory: its output is kept out of long-term memory
        :param parallel_safe: it may run beside other parallel-safe calls of the same answer
        :param serial: it never runs beside another call, whatever else is said
        :param idempotent: it may be run again after a crash
        :param timeout_s: its time limit in seconds; None: that of the setting ``core.agent.tool_timeout``
        :param requires_approval: a person has to agree to each call
        :raises Invalid: the name or an option cannot be
        :raises Conflict: the plugin has a tool of that name
        """

        def collect(function: Function) -> Function:
            tool = ToolDeclaration(
                name or function.__name__,
                function,
                no_memory,
                parallel_safe,
                serial,
                idempotent,
                timeout_s,
                requires_approval,
            )
            check_tool(tool)
            _add(self.tools, tool.name, tool, "tool")
            return function

        return collect

    def stage(
        self,
        stage: str,
        *,
        changes: Collection[str] = (),
        scope: Literal["global", "own_tools"] = "global",
        priority: int = 0,
        timeout_s: float = 5.0,
        required: bool = False,
    ) -> Callable[[Function], Function]:
        """Run a function at one stage of every turn; it takes a :class:`StageCall` and returns a dict or None.

        :param stage: on_input, pre_action, post_action, before_toolcall, after_toolcall, before_output, after_output
        :param changes: the fields that it may return, ``response`` among them; without, it only watches
        :param scope: ``own_tools``: only for calls of this plugin's tools (the two tool stages)
        :param priority: of handlers that change the same field, the lower number runs first
        :param timeout_s: its time limit in seconds; a late handler is skipped
        :param required: if it fails, the turn fails
        :raises Invalid: the stage does not exist, or does not offer what is asked for
        :raises Conflict: the plugin has a handler of that stage
        """

        def collect(function: Function) -> Function:
            handler = StageDeclaration(stage, function, frozenset(changes), scope, priority, timeout_s, required)
            check_stage(handler)
            _add(self.stages, stage, handler, "handler of stage")
            return function

        return collect

    def output_channel(
        self,
        name: str,
        *,
        flags: int = OutputFlags.TEXT,
        description: str = "",
        synchronous: bool = False,
        redelivery: Literal["at_least_once", "at_most_once"] = "at_most_once",
    ) -> Callable[[Function], Function]:
        """Send messages with a function that takes an :class:`OutputMessage` and returns a :class:`Receipt`.

        None as the answer means unconfirmed: sent, but nobody knows whether it arrived.

        :param flags: what it can carry, :class:`OutputFlags` added up
        :param description: for the model; default: the function's docstring
        :param synchronous: someone waits for the final text there, so it is sent without being asked for
        :param redelivery: after a crash, ``at_least_once`` is sent again until confirmed
        :raises Invalid: the name cannot be
        :raises Conflict: the plugin has an output channel of that name
        """

        def collect(function: Function) -> Function:
            check_channel(name)
            text = description or (function.__doc__ or "").strip()
            channel = OutputDeclaration(name, function, int(flags), text, synchronous, redelivery)
            _add(self.outputs, name, channel, "output channel")
            return function

        return collect

    def input_channel(self, name: str, *, description: str = "") -> None:
        """Declare a channel that this plugin submits inputs to.

        :raises Invalid: the name cannot be
        :raises Conflict: the plugin has an input channel of that name
        """
        check_channel(name)
        _add(self.inputs, name, InputDeclaration(name, description), "input channel")

    def on_start(self, hook: HookFunction) -> HookFunction:
        """Run an async function without arguments once, when the settings are there; its failure fails the plugin."""
        self.start_hooks.append(hook)
        return hook

    def on_stop(self, hook: HookFunction) -> HookFunction:
        """Run an async function without arguments at a stop, last registered first; all of them have 5 seconds."""
        self.stop_hooks.append(hook)
        return hook

    def on_event(self, topics: str) -> Callable[[EventFunction], EventFunction]:
        """Run an async function for every event of a topic; ``turn.*`` means all topics that begin with ``turn.``."""

        def collect(function: EventFunction) -> EventFunction:
            self.event_handlers.append((topics, function))
            return function

        return collect

    @property
    def name(self) -> str:
        """The plugin's name, from its manifest."""
        return self._running().name

    @property
    def data_dir(self) -> Path:
        """The plugin's own folder for what it keeps; it exists."""
        return self._running().data_dir

    @property
    def bus(self) -> BusPeer:
        """The plugin's place on the bus."""
        return self._running().bus

    @property
    def log(self) -> Any:
        """A structlog logger that names the plugin."""
        name = self._surroundings.name if self._surroundings else "unbound"
        return get_logger("plugin").bind(plugin=name)

    async def submit(
        self,
        *,
        channel: str,
        conversation: str,
        text: str,
        principal: str,
        speaker: str | None = None,
        delivery_id: str | None = None,
        no_memory: bool = False,
        model: str | None = None,
        level: str = "L2",
        kind: Literal["user", "self"] = "user",
        timeout_s: float = 60.0,
    ) -> Turn:
        """Give the agent an input. When this returns, the input is on disk and will get an outcome.

        Safe to repeat with the same ``delivery_id``: the second time it is a duplicate and the first one's turn.

        :param principal: who it comes from, as :meth:`authenticate` said
        :param delivery_id: the id under which the channel would deliver it again; default: a new one
        :param no_memory: keep it out of long-term memory
        :param model: a configured model's name; default: the first that works
        :param level: L1 (background) to L4; external plugins at most L3
        :param kind: ``self``: the agent acts by itself, nobody typed this
        :raises Invalid: the text is empty
        :raises Overloaded: the lane's queue is full
        :raises NotFound: the model is not configured
        :raises Unavailable: the kernel cannot store it, or is not there
        """
        body = {
            "channel": channel,
            "conversation": conversation,
            "text": text,
            "principal": principal,
            "speaker": speaker,
            "delivery_id": delivery_id or uuid.uuid4().hex,
            "no_memory": no_memory,
            "model": model,
            "level": level,
            "kind": kind,
        }
        answer = await self.bus.call("kernel.submit", body, timeout_s=timeout_s, idempotent=True)
        return Turn(self.bus, answer["turn_id"], answer["status"])

    def turn(self, turn_id: str) -> Turn:
        """Return a turn that was accepted earlier, to follow it again."""
        return Turn(self.bus, turn_id, "accepted")

    async def authenticate(self, key: str) -> Principal:
        """Return whose key it is.

        :raises Denied: nobody's
        """
        answer = await self.bus.call("kernel.authenticate", {"key": key}, idempotent=True)
        return Principal(answer["principal"], answer["name"], answer["role"])

    def enter(self, surroundings: Surroundings) -> None:
        """Bring the plugin to life. Called by the runtime."""
        if self._surroundings is not None:
            raise Conflict(f"plugin {self._surroundings.name} runs already")
        self._surroundings = surroundings

    def leave(self) -> None:
        """Undo :meth:`enter`. Called by the runtime."""
        self._surroundings = None

    def _running(self) -> Surroundings:
        if self._surroundings is None:
            raise Unavailable("the plugin is not running", hint="use this in handlers, not while the module is loaded")
        return self._surroundings


def _add(table: dict[str, Any], name: str, declaration: object, what: str) -> None:
    if name in table:
        raise Conflict(f"the plugin has two of {what} {name!r}", hint="give one of them another name")
    table[name] = declaration
