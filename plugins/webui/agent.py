"""The agent as the web server sees it: the few calls that it makes, with typed answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from homeagent_sdk.errors import HomeAgentError, Unavailable
from homeagent_sdk.plugin import Plugin, Principal, Turn

from .errors import Refused

PAGE_CHANNEL = "webui"
API_CHANNEL = "api"
AGENT_MODELS = ("homeagent", "auto")
"""Names that leave the choice of the model to the agent."""

_SOURCES_S = 60.0
_SOURCES_AGAIN_S = 1.0
_STATUS_S = 0.5


def lane_conversation(principal: str, conversation: str) -> str:
    """Return the conversation id of a lane: each principal has conversations of its own, whatever it calls them."""
    return f"{quote(principal, safe='')}/{conversation}"


def own_conversation(principal: str, lane: str) -> str | None:
    """Return what ``principal`` calls the conversation of a lane, or None if the lane is somebody else's."""
    prefix = lane_conversation(principal, "")
    return lane[len(prefix) :] if lane.startswith(prefix) else None


@dataclass(frozen=True, slots=True)
class Input:
    """What a person or a program said."""

    channel: str
    conversation: str
    """As the principal calls it."""
    text: str
    delivery_id: str
    no_memory: bool = False
    model: str | None = None


class Agent:
    """Asks the agent over the bus.

    What changes rarely is remembered: the sources for a minute or until the configuration changes, the status for
    half a second.
    """

    def __init__(self, plugin: Plugin, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._plugin = plugin
        self._monotonic = monotonic
        self._sources: list[dict[str, Any]] = []
        self._sources_at = float("-inf")
        self._status: dict[str, Any] = {}
        self._status_at = float("-inf")

    async def authenticate(self, key: str) -> Principal:
        """Return whose key it is; raises :class:`homeagent_sdk.errors.Denied` if nobody's."""
        return await self._plugin.authenticate(key)

    async def submit(self, principal: Principal, given: Input) -> Turn:
        """Hand an input over; when this returns, it is on disk."""
        return await self._plugin.submit(
            channel=given.channel,
            conversation=lane_conversation(principal.principal, given.conversation),
            text=given.text,
            principal=principal.principal,
            delivery_id=given.delivery_id,
            no_memory=given.no_memory,
            model=given.model,
        )

    def turn(self, turn_id: str) -> Turn:
        """Return a turn that was accepted earlier."""
        return self._plugin.turn(turn_id)

    async def stop(self, principal: Principal, conversation: str) -> bool:
        """Stop what runs in a conversation of the page; false if nothing did."""
        body = {"channel": PAGE_CHANNEL, "conversation": lane_conversation(principal.principal, conversation)}
        return bool((await self._plugin.bus.call("kernel.stop", body, idempotent=True))["stopped"])

    async def history(self, principal: Principal, conversation: str, limit: int) -> list[dict[str, Any]]:
        """Return the last turns of a conversation of the page, oldest first."""
        body = {
            "channel": PAGE_CHANNEL,
            "conversation": lane_conversation(principal.principal, conversation),
            "principal": principal.principal,
            "limit": limit,
        }
        turns: list[dict[str, Any]] = (await self._plugin.bus.call("kernel.history", body, idempotent=True))["turns"]
        return turns

    async def conversations(self, principal: Principal, limit: int) -> list[dict[str, Any]]:
        """Return the principal's conversations of the page, the one used last first."""
        body = {"channel": PAGE_CHANNEL, "principal": principal.principal, "limit": limit}
        answer = await self._plugin.bus.call("kernel.conversations", body, idempotent=True)
        found = []
        for entry in answer["conversations"]:
            own = own_conversation(principal.principal, entry["conversation"])
            if own is not None:
                found.append({**entry, "conversation": own})
        return found

    async def status(self) -> dict[str, Any]:
        """Return ``kernel.status``; where the kernel does not answer in time, a status that says so."""
        if self._monotonic() - self._status_at > _STATUS_S:
            try:
                self._status = await self._plugin.bus.call("kernel.status", {}, timeout_s=4.0, idempotent=True)
            except HomeAgentError as error:
                kernel = {"name": "kernel", "state": "unavailable", "detail": error.message}
                self._status = {"ready": False, "services": [kernel], "plugins": []}
            self._status_at = self._monotonic()
        return self._status

    async def sources(self, at_most_s: float = _SOURCES_S) -> list[dict[str, Any]]:
        """Return the configured sources in fallback order.

        :param at_most_s: how old, in seconds, the answer may be
        """
        if self._monotonic() - self._sources_at > at_most_s:
            try:
                answer = await self._plugin.bus.call("provider.sources", {}, timeout_s=5.0, idempotent=True)
            except Unavailable:
                # The provider is restarting: what it said before it died still holds.
                if self._sources_at == float("-inf"):
                    raise
                return self._sources
            self._sources = answer["sources"]
            self._sources_at = self._monotonic()
        return self._sources

    def forget_sources(self) -> None:
        """Ask for the sources again when they are next needed."""
        if self._sources_at > float("-inf"):
            self._sources_at = self._monotonic() - _SOURCES_S

    async def models(self) -> list[str]:
        """Return the names of the configured models, each once."""
        return list(dict.fromkeys(str(source["model"]) for source in await self.sources()))

    async def chosen_model(self, name: str) -> str | None:
        """Return the configured model that ``name`` asks for, or None where the agent is to choose.

        :raises Refused: 404, there is no such model
        """
        if name in AGENT_MODELS:
            return None
        if name not in await self.models():
            await self.sources(at_most_s=_SOURCES_AGAIN_S)
            if name not in await self.models():
                known = ", ".join([*AGENT_MODELS, *await self.models()])
                raise Refused("model_not_found", param="model", model=name[:100], known=known)
        return name
