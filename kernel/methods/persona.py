"""kernel.persona_*: the agent's personality, for the ``homeagent`` command."""

from __future__ import annotations

from typing import Any, Final

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Invalid
from kernel.methods.body import as_map, flag_field, text_field
from kernel.prompt.persona import COMMAND, FILE, PERSONAL_FILE, Persona

_ORIGINS: Final = (COMMAND, FILE, PERSONAL_FILE)
_MOST_CHARACTERS: Final = 4 * 1024 * 1024


class PersonaMethods:
    """Shows and changes the persona."""

    def __init__(self, persona: Persona) -> None:
        self._persona = persona

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.persona_get", self.get)
        bus.serve("kernel.persona_set", self.set)
        bus.serve("kernel.persona_reset", self.reset)

    async def get(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return the persona in force, or the one before it."""
        return self._persona.describe(previous=flag_field(as_map(body), "previous"))

    async def set(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Store a persona; from ``personal.md`` only one that was not imported before."""
        fields = as_map(body)
        content = text_field(fields, "content", limit=_MOST_CHARACTERS)
        origin = text_field(fields, "origin", default=COMMAND)
        if origin not in _ORIGINS:
            raise Invalid(f"origin is one of {', '.join(_ORIGINS)}", field="origin")
        if origin == PERSONAL_FILE:
            is_changed = await self._persona.import_personal_file(content)
        else:
            is_changed = await self._persona.set(content, origin)
        return {"changed": is_changed, **self._persona.describe()}

    async def reset(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Go back to the setting, or to the built-in persona."""
        is_changed = await self._persona.reset(COMMAND)
        return {"changed": is_changed, **self._persona.describe()}
