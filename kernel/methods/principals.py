"""kernel.authenticate, kernel.principal_*, kernel.key_new: who there is, and how they prove it."""

from __future__ import annotations

from typing import Any

from homeagent_sdk.bus import BusPeer, CallContext
from kernel.methods.body import as_map, text_field
from kernel.principals import Principals


class PrincipalMethods:
    """Answers about people and systems and their keys."""

    def __init__(self, principals: Principals) -> None:
        self._principals = principals

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.authenticate", self.authenticate)
        bus.serve("kernel.principal_add", self.add)
        bus.serve("kernel.principal_list", self.list)
        bus.serve("kernel.principal_remove", self.remove)
        bus.serve("kernel.key_new", self.key_new)

    async def authenticate(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return whose key it is."""
        principal = self._principals.authenticate(text_field(as_map(body), "key", limit=512))
        return {"principal": principal.principal, "name": principal.name, "role": principal.role}

    async def add(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Make a principal with a first key."""
        principal, key = await self._principals.add(text_field(as_map(body), "name", limit=64))
        return {"principal": principal.principal, "key": key}

    async def list(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return all principals."""
        return {
            "principals": [
                {
                    "principal": each.principal,
                    "name": each.name,
                    "role": each.role,
                    "created": each.created,
                    "keys": each.keys,
                }
                for each in self._principals.list()
            ]
        }

    async def remove(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Remove a principal; its keys stop working."""
        await self._principals.remove(text_field(as_map(body), "principal", limit=64))
        return {}

    async def key_new(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Make another key."""
        return {"key": await self._principals.key_new(text_field(as_map(body), "principal", limit=64))}
