"""The tools that there are, each with the plugin that it belongs to."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from kernel.prompt.tokens import estimate_tokens
from kernel.tools.arguments import parse_arguments
from kernel.tools.offer import GET_PLUGIN_TOOLS, Offer, choose
from kernel.tools.tool import Tool, read_tool
from kernel.tools.validation import check_arguments

_MOST_TOOLS = 512
_MOST_OFFERS = 64
DEFAULT_BUDGET_TOKENS = 800


class ToolRegistry:
    """All tools; those of a plugin come and go as one group. Used from one event loop.

    :param budget_tokens: how many tokens the schemas that a model is shown may cost, but for fetched ones
    :param estimate: tokens of a text
    """

    def __init__(
        self, *, budget_tokens: int = DEFAULT_BUDGET_TOKENS, estimate: Callable[[str], int] = estimate_tokens
    ) -> None:
        self._budget_tokens = budget_tokens
        self._estimate = estimate
        self._groups: dict[str, tuple[Tool, ...]] = {}
        self._by_name: dict[str, Tool] = {GET_PLUGIN_TOOLS.name: GET_PLUGIN_TOOLS}
        self._offers: dict[tuple[str, ...], Offer] = {}

    def register(self, plugin: str, generation: int, tools: Sequence[Any]) -> None:
        """Replace all tools of a plugin by these, or change nothing.

        :param plugin: its name; :data:`kernel.tools.KERNEL` for the kernel's own
        :param tools: entries of ``kernel.register``: ``{name, description, parameters, flags}``
        :raises Invalid: one of them is wrong
        :raises Conflict: another plugin, or the kernel, has a tool of the same name
        """
        if len(tools) > _MOST_TOOLS:
            raise Invalid(f"the plugin {plugin} registers {len(tools)} tools; at most {_MOST_TOOLS}", field="tools")
        self._put(plugin, [read_tool(plugin, generation, body) for body in tools])

    def restore(self, plugin: str, tools: Iterable[Tool]) -> None:
        """Put back what :meth:`of_plugin` returned before a registration that failed elsewhere."""
        self._put(plugin, list(tools))

    def unregister(self, plugin: str) -> None:
        """Take out all tools of a plugin; nothing happens if it has none."""
        self._put(plugin, [])

    def of_plugin(self, plugin: str) -> tuple[Tool, ...]:
        """Return the tools of a plugin, in the order in which it registered them."""
        return self._groups.get(plugin, ())

    def find(self, name: str) -> Tool | None:
        """Return a tool, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> Tool:
        """Return a tool that a model called.

        :raises NotFound: there is none; the hint is written for the model
        """
        tool = self._by_name.get(name)
        if tool is None:
            similar = difflib.get_close_matches(name, self._by_name, n=3)
            meant = f"did you mean {' or '.join(similar)}? " if similar else ""
            raise NotFound(
                f"there is no tool {name[:64]!r}",
                field="tool",
                hint=f"{meant}Call only tools that you were given; {GET_PLUGIN_TOOLS.name} gives those of a plugin.",
            )
        return tool

    def arguments(self, tool: Tool, text: str) -> dict[str, Any]:
        """Return the arguments of a call as the tool may get them.

        :param text: what the model wrote
        :raises ArgumentsRefused: it must not be run
        """
        arguments = parse_arguments(text, may_be_empty=not tool.parameters.get("properties"))
        return check_arguments(tool.parameters, arguments)

    def offer(self, fetched: Collection[str] = ()) -> Offer:
        """Return what a model is shown; cheap, since it changes only with a registration.

        :param fetched: plugins whose tools were asked for in this turn
        """
        key = tuple(sorted(self._groups.keys() & set(fetched)))
        offer = self._offers.get(key)
        if offer is None:
            if len(self._offers) >= _MOST_OFFERS:
                self._offers.clear()
            offer = choose(self._groups, key, self._budget_tokens, self._estimate)
            self._offers[key] = offer
        return offer

    def describe(self, plugin: str) -> list[dict[str, Any]]:
        """Return the schemas of a plugin's tools: what ``get_plugin_tools`` answers; of a service those not shown.

        :raises NotFound: no such plugin has tools
        """
        tools = self._groups.get(plugin.strip())
        if not tools:
            known = ", ".join(sorted(self._groups)) or "none"
            raise NotFound(
                f"no plugin {plugin[:64]!r} has tools", field="plugin_name", hint=f"plugins with tools: {known}"
            )
        schemas = [tool.schema for tool in tools]
        shown = {schema["name"] for schema in self.offer().schemas}
        return [schema for schema in schemas if schema["name"] not in shown] or schemas

    def _put(self, plugin: str, tools: list[Tool]) -> None:
        names: set[str] = set()
        for tool in tools:
            holder = self._by_name.get(tool.name)
            if tool.name in names:
                raise Invalid(f"the plugin {plugin} registers the tool {tool.name} twice", field="name")
            if holder is not None and (holder.plugin != plugin or holder is GET_PLUGIN_TOOLS):
                raise Conflict(
                    f"the plugin {plugin} registers the tool {tool.name}, which {holder.plugin} has already",
                    field="name",
                    hint=f"rename it in {plugin}, or disable one of the two",
                )
            names.add(tool.name)
        for old in self._groups.pop(plugin, ()):
            del self._by_name[old.name]
        if tools:
            self._groups[plugin] = tuple(tools)
        self._by_name.update((tool.name, tool) for tool in tools)
        self._offers.clear()
