"""Which tools a model is shown in full, and which as one line in a catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.tools.tool import KERNEL, Tool

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
)
_LONGEST_DESCRIPTION = 60
_LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class Offer:
    """What a model is told of the tools.

    :ivar schemas: ``{name, description, parameters}`` of those that it can call at once
    :ivar catalogue: one line for each plugin whose tools it must fetch first
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

    The kernel's own tools always; then whole plugins, those with the smallest schemas first, as long as the budget
    lasts. What was fetched comes on top and moves nothing else, the catalogue neither. The same registrations give the
    same offer, so that providers can cache the prompt.

    :param groups: plugin → its tools
    """
    cost = {plugin: sum(_tokens(tool, estimate) for tool in tools) for plugin, tools in groups.items()}
    left = budget_tokens - cost.get(KERNEL, 0)
    hidden: list[str] = []
    for plugin in sorted(groups.keys() - {KERNEL}, key=lambda each: (cost[each], each)):
        left -= cost[plugin]
        if left < 0:
            hidden.append(plugin)
    shown = sorted(
        (plugin for plugin in groups if plugin not in hidden or plugin in fetched),
        key=lambda each: (each != KERNEL, each in hidden, each),
    )
    tools = [tool for plugin in shown for tool in groups[plugin]]
    if hidden:
        tools.insert(0, GET_PLUGIN_TOOLS)
    return Offer(
        schemas=tuple(tool.schema for tool in tools),
        catalogue=tuple(_line(plugin, groups[plugin]) for plugin in sorted(hidden)),
        tokens=sum(_tokens(tool, estimate) for tool in tools),
    )


def _tokens(tool: Tool, estimate: Callable[[str], int]) -> int:
    return estimate(json.dumps(tool.schema, ensure_ascii=False))


def _line(plugin: str, tools: Sequence[Tool]) -> str:
    line = f"{plugin} ({len(tools)} {'tool' if len(tools) == 1 else 'tools'}):"
    for position, tool in enumerate(tools):
        first = tool.description.strip().splitlines()[0]
        short = first if len(first) <= _LONGEST_DESCRIPTION else f"{first[: _LONGEST_DESCRIPTION - 1]}…"
        entry = f" {tool.name}: {short};"
        if position and len(line) + len(entry) > _LONGEST_LINE:
            return f"{line} and {len(tools) - position} more"
        line += entry
    return line.removesuffix(";")
