"""kernel.config_*: the registry of settings, for services and the ``homeagent`` command."""

from __future__ import annotations

from typing import Any

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Invalid
from kernel.config import ConfigRegistry
from kernel.methods.body import as_map, text_field


class SettingMethods:
    """Answers from the registry."""

    def __init__(self, config: ConfigRegistry) -> None:
        self._config = config

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.config_get", self.get)
        bus.serve("kernel.config_set", self.set)
        bus.serve("kernel.config_unset", self.unset)
        bus.serve("kernel.config_list", self.list)

    async def get(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return one entry."""
        return self._config.entry(text_field(as_map(body), "key"))

    async def set(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Store a value."""
        fields = as_map(body)
        if "value" not in fields:
            raise Invalid("value is missing", field="value")
        return await self._config.set(text_field(fields, "key"), fields["value"])

    async def unset(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Go back to the default."""
        return await self._config.unset(text_field(as_map(body), "key"))

    async def list(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return all entries whose key begins with a prefix."""
        entries = self._config.entries(text_field(as_map(body), "prefix", default=""))
        return {"entries": entries}
