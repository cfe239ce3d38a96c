"""Which tools a model is shown in full, and which as one line in a catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.tools.tool import KERNEL, SERVICES, Tool, ToolFlags

GET_PLUGIN_TOOLS = Tool(
    name="get_plugin_tools",
    plugin=KERNEL,
    description="Get the tools of a plugin of the catalogue. Afterwards they can be called.",
    parameters={
        "type": "object",
        "properties": {"plugin_name": {"type": "string", "description": "name of the plugin in the catalogue"}},
        "required": ["plugin_name"],
        "additionalProperties": False,
    },
    flags=ToolFlags(no_memory=True, parallel_safe=True, idempotent=True),
)
_LONGEST_DESCRIPTION = 60
_LONGEST_LINE = 300
_SHARE_OF_A_SERVICE = 0.5


@dataclass(frozen=True, slots=True)
class Offer:
    """What a model is told of the tools.

    :ivar schemas: ``{name, description, parameters}`` of those that it can call at once
    :ivar catalogue: one line for each plugin or service that has tools which it must fetch first
    :ivar tokens: what the schemas cost, by estimate; the catalogue is part of the prompt's text
    """

    schemas: tuple[dict[str, Any], ...]
    catalogue: tuple[str, ...]
    tokens: int


def choose(
    groups: Mapping[str, Sequence[Tool]],
    fetched: Collection[str],
    budget_tokens: int,
    estimate: Callable[[str], int],
) -> Offer:
    """Choose what to show.

    Of a service the tools flagged ``always``; then whole plugins, those with the smallest schemas first, as long as the
    budget lasts. What was fetched comes on top and moves nothing else, the catalogue neither. The same registrations
    give the same offer, so that providers can cache the prompt.

    :param groups: plugin or service → its tools
    """
    shown: dict[str, Sequence[Tool]] = {}
    hidden: dict[str, Sequence[Tool]] = {}
    left = budget_tokens
    for service in SERVICES:
        shown[service], hidden[service] = _split(service, groups.get(service, ()), budget_tokens, estimate)
        left -= _cost(shown[service], estimate)
    cost = {plugin: _cost(tools, estimate) for plugin, tools in groups.items() if plugin not in SERVICES}
    for plugin in sorted(cost, key=lambda each: (cost[each], each)):
        left -= cost[plugin]
        (shown if left >= 0 else hidden)[plugin] = groups[plugin]
    hidden = {plugin: hidden[plugin] for plugin in sorted(hidden) if hidden[plugin]}
    tools = [GET_PLUGIN_TOOLS] if hidden else []
    for owner in (*SERVICES, *sorted(shown.keys() - set(SERVICES))):
        tools += shown[owner]
    for owner in (each for each in hidden if each in fetched):
        tools += hidden[owner]
    return Offer(
        schemas=tuple(tool.schema for tool in tools),
        catalogue=tuple(_line(plugin, tools) for plugin, tools in hidden.items()),
        tokens=_cost(tools, estimate),
    )


def _split(
    service: str, tools: Sequence[Tool], budget_tokens: int, estimate: Callable[[str], int]
) -> tuple[list[Tool], list[Tool]]:
    """Return the tools of a service that are shown in full, and those that must be fetched.

    Another service than the kernel gets half of the budget at most, in the order in which it registered them.
    """
    room = budget_tokens if service == KERNEL else int(budget_tokens * _SHARE_OF_A_SERVICE)
    shown: list[Tool] = []
    hidden: list[Tool] = []
    for tool in tools:
        room -= _tokens(tool, estimate) if tool.flags.always else 0
        is_shown = tool.flags.always and (room >= 0 or service == KERNEL)
        (shown if is_shown else hidden).append(tool)
    return shown, hidden


def _cost(tools: Sequence[Tool], estimate: Callable[[str], int]) -> int:
    return sum(_tokens(tool, estimate) for tool in tools)


def _tokens(tool: Tool, estimate: Callable[[str], int]) -> int:
    return estimate(json.dumps(tool.schema, ensure_ascii=False))


def _line(plugin: str, tools: Sequence[Tool]) -> str:
    """Return a plugin's line: its tools with what they do or, where that is too long, their names alone."""
    count = f"{plugin} ({len(tools)} {'tool' if len(tools) == 1 else 'tools'}):"
    described = f"{count} {'; '.join(f'{tool.name}: {_short(tool)}' for tool in tools)}"
    if len(described) <= _LONGEST_LINE:
        return described
    named = count
    for position, tool in enumerate(tools):
        entry = f"{',' if position else ''} {tool.name}"
        if position and len(named) + len(entry) > _LONGEST_LINE:
            return f"{named} and {len(tools) - position} more"
        named += entry
    return named


def _short(tool: Tool) -> str:
    first = tool.description.strip().splitlines()[0]
    return first if len(first) <= _LONGEST_DESCRIPTION else f"{first[: _LONGEST_DESCRIPTION - 1]}…"
