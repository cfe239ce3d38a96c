"""What the kernel knows of the models: asked of the provider service, kept for a few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError

_KEEP_S: Final = 10.0
_ASK_TIMEOUT_S: Final = 2.0
_ASK_AGAIN_S: Final = 5.0
"""After a question that was not answered: a turn asks several times, and must not wait each time."""
DEFAULT_CONTEXT_WINDOW: Final = 32768
ANY_MODEL: Final = frozenset({"", "auto", "AUTO", "homeagent"})
"""Names by which a client leaves the choice to us."""
_log = structlog.get_logger("sources")


@dataclass(frozen=True, slots=True)
class SourceView:
    """What a prompt has to know of a source."""

    name: str
    model: str
    context_window: int
    takes_tools: bool


_UNKNOWN = SourceView("", "", DEFAULT_CONTEXT_WINDOW, True)


class Sources:
    """The list of sources, in fallback order."""

    def __init__(self, bus: BusPeer) -> None:
        self._bus = bus
        self._sources: list[dict[str, Any]] = []
        self._ask_at = float("-inf")
        self._changes = 0
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Ask again next time: the configuration changed, or the provider service was restarted."""
        self._changes += 1
        self._ask_at = float("-inf")

    async def choose(self, model: str) -> SourceView:
        """Return the source that will probably answer; where none can be asked, a cautious guess."""
        wanted = [each for each in await self.all() if model in ANY_MODEL or each.get("model") == model]
        ready = [each for each in wanted if each.get("state") == "ready"] or wanted
        if not ready:
            return _UNKNOWN
        first = ready[0]
        window = int(first.get("context_window") or DEFAULT_CONTEXT_WINDOW)
        return SourceView(str(first["name"]), str(first["model"]), window, bool(first.get("tools", True)))

    async def have(self, model: str) -> bool:
        """Tell whether a source has the model; also true where no source is known, since then nobody can say."""
        for is_last in (False, True):
            sources = await self.all()
            if not sources or model in ANY_MODEL or any(each.get("model") == model for each in sources):
                return True
            if not is_last:
                self.forget()  # it may have been added just now
        return False

    async def all(self) -> list[dict[str, Any]]:
        """Return all sources as the provider service lists them; an old list if it cannot be asked."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._ask_at:
                known_changes = self._changes
                ask_again_at = await self._ask(clock)
                if known_changes == self._changes:
                    self._ask_at = ask_again_at
        return self._sources

    async def _ask(self, clock: Callable[[], float]) -> float:
        """Ask, and return when to ask again."""
        try:
            answer = await self._bus.call("provider.sources", timeout_s=_ASK_TIMEOUT_S, idempotent=True)
        except HomeAgentError as error:
            _log.info("sources not known", reason=str(error))
            return clock() + _ASK_AGAIN_S
        self._sources = list(answer["sources"])
        return clock() + _KEEP_S
