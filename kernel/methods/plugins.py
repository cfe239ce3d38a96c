"""kernel.define_settings and kernel.register: plugins tell the kernel what they have, as one group.

The memory service registers its tools likewise, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Denied, HomeAgentError, Invalid
from kernel.channels import ChannelRegistry
from kernel.config import ConfigRegistry
from kernel.methods.body import as_map
from kernel.stage_host import StageHost, StageSpec
from kernel.tools import KERNEL, OUTPUT_PREFIX, SERVICES, ToolRegistry
from kernel.turns import own_tools

_log = structlog.get_logger("plugins")


class PluginMethods:
    """Keeps tools, stages and channels of a plugin together: all are there, or none."""

    def __init__(
        self, config: ConfigRegistry, tools: ToolRegistry, stages: StageHost, channels: ChannelRegistry
    ) -> None:
        self._config = config
        self._tools = tools
        self._stages = stages
        self._channels = channels
        self._generations: dict[str, int] = {}
        self.absent_tools: dict[str, str] = {}
        """Tools of plugins that died and are being started again, with their plugins."""
        self._offer_own_tools()

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.define_settings", self.define_settings)
        bus.serve("kernel.register", self.register)

    @property
    def registered(self) -> Mapping[str, int]:
        """The plugins that are usable, with their generations."""
        return self._generations

    async def define_settings(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Take in a plugin's definitions and return the values that hold for it."""
        fields = as_map(body)
        if fields.get("plugin", call.origin.name) != call.origin.name:
            raise Denied(f"{call.origin.name} may define its own settings only", field="plugin")
        definitions = fields.get("definitions", [])
        if not isinstance(definitions, list):
            raise Invalid("definitions must be a list", field="definitions")
        return {"settings": await self._config.define_plugin_settings(call.origin.name, definitions)}

    async def register(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Replace all that a plugin had registered by this group, or change nothing."""
        fields, plugin, tier = as_map(body), call.origin.name, call.origin.tier
        if plugin in SERVICES:
            _refuse_all_but_tools(plugin, fields)
        specs = [StageSpec.from_wire(each) for each in _list(fields, "stages")]
        tools_before, channels_before = self._tools.of_plugin(plugin), self._channels.of_plugin(plugin)
        self._tools.register(plugin, call.origin.generation, _list(fields, "tools"))
        try:
            self._channels.register(plugin, _list(fields, "outputs"), _list(fields, "inputs"))
            self._stages.register(plugin, tier, specs)
        except HomeAgentError:
            self._tools.restore(plugin, tools_before)
            self._channels.restore(plugin, channels_before)
            raise
        finally:
            self._offer_own_tools()
        self._generations[plugin] = call.origin.generation
        self._no_longer_absent(plugin)
        _log.info("plugin registered", plugin=plugin, generation=call.origin.generation)
        return {}

    def forget(self, plugin: str, generation: int, *, for_good: bool = False) -> None:
        """Take out everything of a plugin whose process is gone; a newer generation stays.

        :param for_good: a person stopped it; otherwise its required handlers keep guarding until it is back
        """
        if self._generations.get(plugin, generation) > generation:
            return
        self._generations.pop(plugin, None)
        self._no_longer_absent(plugin)
        if not for_good:
            self.absent_tools |= dict.fromkeys(self._tool_names(plugin), plugin)
        self._tools.unregister(plugin)
        self._stages.unregister(plugin, keep_required=not for_good)
        self._channels.unregister(plugin)
        self._offer_own_tools()

    def _tool_names(self, plugin: str) -> list[str]:
        outputs, _ = self._channels.of_plugin(plugin)
        sending = [f"{OUTPUT_PREFIX}{each.name}" for each in outputs if not each.is_synchronous]
        return [*(tool.name for tool in self._tools.of_plugin(plugin)), *sending]

    def _no_longer_absent(self, plugin: str) -> None:
        for name in [name for name, owner in self.absent_tools.items() if owner == plugin]:
            del self.absent_tools[name]

    def _offer_own_tools(self) -> None:
        self._tools.register(KERNEL, 0, own_tools.definitions(self._channels))


def _refuse_all_but_tools(service: str, fields: Mapping[str, Any]) -> None:
    for part in ("stages", "outputs", "inputs"):
        if fields.get(part):
            raise Denied(f"the service {service} may register tools only, not {part}", field=part)


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name) or []
    if not isinstance(value, list):
        raise Invalid(f"{name} must be a list", field=name)
    return value
