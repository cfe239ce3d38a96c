"""Input and output channels: which there are, what they carry, and the tools by which the model sends over them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from homeagent_sdk.plugin.messages import OutputFlags
from kernel.tools import OUTPUT_PREFIX

HELP_SUFFIX = "_help"
LONGEST_NAME = 64 - len(OUTPUT_PREFIX) - len(HELP_SUFFIX)
TYPES: Mapping[str, OutputFlags] = {
    "text": OutputFlags.TEXT,
    "file": OutputFlags.FILE,
    "image": OutputFlags.IMAGE,
    "audio": OutputFlags.AUDIO,
    "structured": OutputFlags.STRUCTURED,
}
"""Type of an output → the flag that a channel needs for it."""
_ALIASES = {"voice": "audio"}
_PAYLOADS = {
    "text": "the text itself",
    "file": "the path of a file, or its content",
    "image": "the path or address of a picture",
    "audio": "the path or address of a recording",
    "structured": "a JSON object, written as a text",
}
_AFTER_A_CRASH = {
    "at_least_once": "After a crash of the system it may arrive twice.",
    "at_most_once": "It is never sent twice; after a crash of the system it may be lost, and you are told so.",
}
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_ALL_FLAGS = sum(OutputFlags)
_LONGEST_DESCRIPTION = 2_000
_MOST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class OutputChannel:
    """A way out.

    :ivar plugin: whose it is
    :ivar flags: what it can carry
    :ivar is_synchronous: who asks over it waits for the final text, so that the model need not send anything
    :ivar redelivery: whether an output is sent again until it is confirmed, or never twice
    """

    name: str
    plugin: str
    flags: OutputFlags
    description: str
    is_synchronous: bool
    redelivery: Literal["at_least_once", "at_most_once"]

    @property
    def types(self) -> tuple[str, ...]:
        """The types of output that it carries."""
        return tuple(name for name, flag in TYPES.items() if flag in self.flags)


@dataclass(frozen=True, slots=True)
class InputChannel:
    """A way in, and the plugin that it belongs to."""

    name: str
    plugin: str
    description: str


Channel = TypeVar("Channel", OutputChannel, InputChannel)


class ChannelRegistry:
    """All channels; those of a plugin come and go as one group. Used from one event loop."""

    def __init__(self) -> None:
        self._outputs: dict[str, OutputChannel] = {}
        self._inputs: dict[str, InputChannel] = {}

    def register(self, plugin: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Replace all channels of a plugin by these, or change nothing.

        :param outputs: entries of ``kernel.register``: ``{name, flags, description, synchronous, redelivery}``
        :param inputs: likewise: ``{name, description}``
        :raises Invalid: one of them is wrong
        :raises Conflict: another plugin has a channel of the same name and direction
        """
        if len(outputs) > _MOST_CHANNELS or len(inputs) > _MOST_CHANNELS:
            raise Invalid(f"the plugin {plugin} registers more than {_MOST_CHANNELS} channels", field="outputs")
        new_outputs = _without_clash(plugin, "output", [_read_output(plugin, each) for each in outputs], self._outputs)
        new_inputs = _without_clash(plugin, "input", [_read_input(plugin, each) for each in inputs], self._inputs)
        self.unregister(plugin)
        self._outputs |= new_outputs
        self._inputs |= new_inputs

    def unregister(self, plugin: str) -> None:
        """Take out all channels of a plugin; nothing happens if it has none."""
        self._outputs = {name: each for name, each in self._outputs.items() if each.plugin != plugin}
        self._inputs = {name: each for name, each in self._inputs.items() if each.plugin != plugin}

    def of_plugin(self, plugin: str) -> tuple[list[OutputChannel], list[InputChannel]]:
        """Return the channels of a plugin, output and input."""
        return (
            [each for each in self._outputs.values() if each.plugin == plugin],
            [each for each in self._inputs.values() if each.plugin == plugin],
        )

    def restore(self, plugin: str, channels: tuple[Sequence[OutputChannel], Sequence[InputChannel]]) -> None:
        """Put back what :meth:`of_plugin` returned before a registration that failed elsewhere."""
        self.unregister(plugin)
        self._outputs |= {each.name: each for each in channels[0]}
        self._inputs |= {each.name: each for each in channels[1]}

    def output(self, name: str) -> OutputChannel | None:
        """Return an output channel, or None."""
        return self._outputs.get(name)

    def outputs(self) -> list[OutputChannel]:
        """Return all output channels by name."""
        return [self._outputs[name] for name in sorted(self._outputs)]

    def inputs(self) -> list[InputChannel]:
        """Return all input channels by name."""
        return [self._inputs[name] for name in sorted(self._inputs)]

    def sendable(self) -> list[OutputChannel]:
        """Return the channels over which the model sends by itself: those that are not synchronous."""
        return [channel for channel in self.outputs() if not channel.is_synchronous]

    def check_type(self, name: str, kind: str) -> tuple[OutputChannel, str]:
        """Return a channel and the type as channels know it, for an output that is to be sent.

        :raises NotFound: there is no such channel
        :raises Invalid: it cannot carry that; the hint, written for the model, says what it can
        """
        channel = self._known_output(name)
        kind = _ALIASES.get(kind.strip().lower(), kind.strip().lower()) or channel.types[0]
        if kind not in channel.types:
            raise Invalid(
                f"the channel {name} cannot carry {kind[:64]!r}",
                field="type",
                hint=f"it carries {', '.join(channel.types)}",
            )
        return channel, kind

    def tools(self) -> list[dict[str, Any]]:
        """Return the kernel's tools for sending, two for each channel, as :meth:`ToolRegistry.register` takes them."""
        return [tool for channel in self.sendable() for tool in (_send_tool(channel), _help_tool(channel))]

    def help_text(self, name: str) -> str:
        """Return what ``output_send__<name>_help`` tells the model.

        :raises NotFound: there is no such channel
        """
        channel = self._known_output(name)
        kinds = "\n".join(f"- type {kind}: payload is {_PAYLOADS[kind]}" for kind in channel.types)
        return (
            f"{channel.name}, of the plugin {channel.plugin}: {channel.description}\n"
            f"Call {OUTPUT_PREFIX}{channel.name} with payload, type ({channel.types[0]} if left out) and, if need be, "
            f"meta: options of this channel, a JSON object written as a text.\n{kinds}\n"
            "It answers ok when the message has arrived, unconfirmed when that cannot be known, or why it failed. "
            f"{_AFTER_A_CRASH[channel.redelivery]}"
        )

    def _known_output(self, name: str) -> OutputChannel:
        channel = self._outputs.get(name)
        if channel is None:
            known = ", ".join(each.name for each in self.sendable()) or "none"
            raise NotFound(f"there is no output channel {name[:64]!r}", field="channel", hint=f"channels: {known}")
        return channel


def channel_of_tool(tool: str) -> tuple[str, bool] | None:
    """Return the channel that a tool of :meth:`ChannelRegistry.tools` is for, and whether it is its help; else None."""
    if not tool.startswith(OUTPUT_PREFIX):
        return None
    name = tool.removeprefix(OUTPUT_PREFIX)
    return name.removesuffix(HELP_SUFFIX), name.endswith(HELP_SUFFIX)


def _send_tool(channel: OutputChannel) -> dict[str, Any]:
    properties: dict[str, Any] = {"payload": {"type": "string", "description": "what to send"}}
    if len(channel.types) > 1:
        properties["type"] = {"type": "string", "enum": list(channel.types), "default": channel.types[0]}
    properties["meta"] = {"type": "string", "description": "options of the channel, a JSON object as text"}
    first_line = channel.description.strip().splitlines()[0]
    return {
        "name": f"{OUTPUT_PREFIX}{channel.name}",
        "description": f"Send a message over {channel.name}: {first_line}",
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": ["payload"],
            "additionalProperties": False,
        },
        "flags": {"always": True},
    }


def _help_tool(channel: OutputChannel) -> dict[str, Any]:
    return {
        "name": f"{OUTPUT_PREFIX}{channel.name}{HELP_SUFFIX}",
        "description": f"What can be sent over {channel.name}, and how.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "flags": {"parallel_safe": True, "idempotent": True, "no_memory": True, "always": True},
    }


def _without_clash(
    plugin: str, direction: str, channels: Sequence[Channel], registered: Mapping[str, Channel]
) -> dict[str, Channel]:
    by_name: dict[str, Channel] = {}
    for channel in channels:
        holder = registered.get(channel.name)
        if holder is not None and holder.plugin != plugin:
            raise Conflict(
                f"the plugin {plugin} registers the {direction} channel {channel.name}, which {holder.plugin} has",
                field="name",
                hint=f"rename it in {plugin}, or disable one of the two",
            )
        if channel.name in by_name:
            raise Invalid(f"the plugin {plugin} registers the {direction} channel {channel.name} twice", field="name")
        by_name[channel.name] = channel
    return by_name


def _read_output(plugin: str, body: Any) -> OutputChannel:
    name, description = _name_and_description(plugin, body)
    flags, redelivery = body.get("flags", 1), body.get("redelivery", "at_most_once")
    if isinstance(flags, bool) or not isinstance(flags, int) or not 0 < flags <= _ALL_FLAGS:
        raise Invalid(
            f"the flags of the channel {name} of {plugin} are {flags!r}",
            field="flags",
            hint="add up what it carries: text 1, file 2, image 4, audio 8, structured 16",
        )
    if redelivery not in _AFTER_A_CRASH:
        raise Invalid(
            f"the redelivery of the channel {name} of {plugin} is {redelivery!r}",
            field="redelivery",
            hint=f"use {' or '.join(_AFTER_A_CRASH)}",
        )
    return OutputChannel(
        name, plugin, OutputFlags(flags), description, body.get("synchronous", False) is True, cast(Any, redelivery)
    )


def _read_input(plugin: str, body: Any) -> InputChannel:
    name, description = _name_and_description(plugin, body)
    return InputChannel(name, plugin, description)


def _name_and_description(plugin: str, body: Any) -> tuple[str, str]:
    if not isinstance(body, dict):
        raise Invalid(f"a channel of {plugin} is no object", field="outputs")
    name = body.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(HELP_SUFFIX):
        raise Invalid(
            f"the plugin {plugin} registers a channel named {name!r:.100}",
            field="name",
            hint=f"use 1 to {LONGEST_NAME} of A-Z a-z 0-9 _ -, not ending in {HELP_SUFFIX}: it becomes part of a "
            "tool's name",
        )
    description = body.get("description") or name
    if not isinstance(description, str) or len(description) > _LONGEST_DESCRIPTION:
        raise Invalid(
            f"the description of the channel {name} of {plugin} must have at most {_LONGEST_DESCRIPTION} characters",
            field="description",
        )
    return name, description
