"""All sources, in the order in which they are asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import NotFound
from provider_service.errors import CallFailed, Fault
from provider_service.source import ENVIRONMENT_SOURCE, Source
from provider_service.source_health import SourceHealth

SLOT_WAIT_S = 30.0
"""How long a call waits for a free slot of a source before the next one is asked."""

WAITING_PER_SLOT = 8
ANY_MODEL = frozenset({"", "auto", "homeagent"})


class Slots:
    """The calls that one source takes at the same time; the wait for one is bounded in time and number."""

    def __init__(self, count: int) -> None:
        self._semaphore = asyncio.Semaphore(count)
        self._most_waiting = count * WAITING_PER_SLOT
        self._waiting = 0

    @asynccontextmanager
    async def take(self, wait_s: float = SLOT_WAIT_S) -> AsyncIterator[None]:
        """Hold a slot.

        :raises CallFailed: none became free in time
        """
        if self._semaphore.locked():
            await self._wait(wait_s)
        else:
            await self._semaphore.acquire()
        try:
            yield
        finally:
            self._semaphore.release()

    async def _wait(self, wait_s: float) -> None:
        if self._waiting >= self._most_waiting:
            raise CallFailed(Fault.BUSY, text("provider.busy"))
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._semaphore.acquire()
        except TimeoutError:
            raise CallFailed(Fault.BUSY, text("provider.busy")) from None
        finally:
            self._waiting -= 1


@dataclass(slots=True)
class Entry:
    """A source with its state."""

    source: Source
    health: SourceHealth
    slots: Slots
    problem: str | None = None
    """What makes it unusable as it is configured."""
    is_starting: bool = False
    """It is there but does not answer yet."""

    @property
    def is_usable(self) -> bool:
        """Whether it may be asked now."""
        return self.problem is None and self.health.state == "ready"


@dataclass(slots=True)
class Sources:
    """The sources, kept up to date by the configuration.

    :param monotonic: the clock of their health, in seconds
    """

    monotonic: Callable[[], float] = time.monotonic
    _entries: dict[str, Entry] = field(default_factory=dict)

    def replace(self, sources: Iterable[Source], *, starting: Source | None = None) -> list[str]:
        """Take over a new set; a source that did not change keeps its health and slots.

        :param starting: one that does not answer yet
        :returns: the names of those that are new, gone or different
        """
        old = self._entries
        self._entries = {}
        for source in sources:
            before = old.get(source.name)
            kept = before is not None and before.source == source and not before.is_starting
            self._entries[source.name] = before if before is not None and kept else self._new(source)
        if starting is not None:
            entry = Entry(starting, SourceHealth(self.monotonic), Slots(1), text("provider.starting"), is_starting=True)
            self._entries[starting.name] = entry
        return [name for name in {**old, **self._entries} if old.get(name) is not self._entries.get(name)]

    def key_changed(self, name: str) -> None:
        """Forget what is known of a source's health, since its key changed."""
        if entry := self._entries.get(name):
            entry.health = SourceHealth(self.monotonic)

    def _new(self, source: Source) -> Entry:
        return Entry(source, SourceHealth(self.monotonic), Slots(source.max_concurrent), source.problem())

    def in_order(self) -> list[Entry]:
        """Return all of them: the one of the environment, then by priority, then by name."""
        return sorted(self._entries.values(), key=_order)

    def candidates(self, model: str, *, with_images: bool = False) -> list[Entry]:
        """Return the sources to ask, in order: those with exactly this model first, the others as fallback.

        Sources that understand images go before those that do not, if there are any in the request. Where all rest,
        those that may be probed are returned.

        :raises NotFound: no source has this model
        """
        entries = self.in_order()
        if model.lower() not in ANY_MODEL:
            if not any(model in (entry.source.model, entry.source.name) for entry in entries):
                known = ", ".join(sorted({entry.source.model for entry in entries}))
                raise NotFound(
                    text("provider.unknown_model", model=model),
                    field="model",
                    hint=text("provider.unknown_model_hint", models=known),
                )
            entries.sort(key=lambda entry: model not in (entry.source.model, entry.source.name))
        if with_images:
            entries.sort(key=lambda entry: not entry.source.vision)
        usable = [entry for entry in entries if entry.is_usable]
        return usable or [entry for entry in entries if entry.problem is None and entry.health.may_be_probed]

    def listing(self, key_is_set: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return what ``provider.sources`` answers, in order."""
        return [_listed(entry, key_is_set(entry.source.name)) for entry in self.in_order()]

    def reasons(self, failures: Sequence[tuple[str, CallFailed]] = ()) -> dict[str, str]:
        """Return why each source did not answer: what just failed, else what its state says."""
        failed = {name: failure.reason for name, failure in failures}
        return {
            entry.source.name: failed.get(entry.source.name) or entry.problem or entry.health.reason
            for entry in self.in_order()
        }

    def shortest_rest_s(self) -> float | None:
        """Return when the first of them is to be asked again, or None if none ever is by itself."""
        rests = [entry.health.rest_s for entry in self._entries.values() if entry.problem is None]
        finite = [rest for rest in rests if rest != float("inf")]
        return min(finite) if finite else None


def _order(entry: Entry) -> tuple[bool, int, str]:
    return entry.source.name != ENVIRONMENT_SOURCE, -entry.source.priority, entry.source.name


def _listed(entry: Entry, key_set: bool) -> dict[str, Any]:
    source = entry.source
    state = "starting" if entry.is_starting else "stopped" if entry.problem else entry.health.state
    return {
        "name": source.name,
        "model": source.model,
        "adapter": source.adapter,
        "base_url": source.shown_url,
        "context_window": source.context_window,
        "vision": source.vision,
        "audio": source.audio,
        "tools": source.tools,
        "state": state,
        "reason": entry.problem or entry.health.reason,
        "embedded": source.embedded,
        "key_set": key_set,
    }
