"""The service on the bus: its methods, and the sources kept as the configuration says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import structlog

from homeagent_sdk.bus.abc import BusPeer, CallContext, Event
from homeagent_sdk.catalogue import language, text, texts
from homeagent_sdk.errors import Denied, HomeAgentError, Invalid
from provider_service.adapter_workers import AdapterWorkers
from provider_service.chat import Chat
from provider_service.chat_request import parse_chat
from provider_service.embedded import NAME as EMBEDDED
from provider_service.embedded import EmbeddedModel
from provider_service.keys import KeyStore
from provider_service.ledger import Ledger
from provider_service.source import ENVIRONMENT_KEY, Source, source_from_environment, sources_from_entries
from provider_service.sources import Sources
from provider_service.upstream import Limits, Upstream

CONFIG_PREFIX = "core.llm."
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 5.0
SOURCES_WAIT_S = 10.0
"""How long a call waits for the configuration to have been read for the first time."""

BUNDLED_ADAPTERS = Path(__file__).parent.parent / "adapters"

_log = structlog.get_logger("provider_service")


class ProviderService:
    """The provider service.

    :param peer: its place on the bus, under the name ``provider``; not yet started
    :param folder: the service's part of the data directory
    :param environ: where a first source may be defined
    :param secrets: the keys that this process was given
    :param limits: of each call
    :param embedded_is_allowed: whether the embedded model may be started where there is no source
    """

    def __init__(
        self,
        peer: BusPeer,
        folder: Path,
        *,
        environ: Mapping[str, str],
        secrets: Mapping[str, str],
        limits: Limits | None = None,
        embedded_is_allowed: bool = True,
    ) -> None:
        self.sources = Sources()
        self.keys = KeyStore(folder / "keys", secrets.get(ENVIRONMENT_KEY))
        self.ledger = Ledger(folder / "usage.db")
        self.workers = AdapterWorkers(BUNDLED_ADAPTERS, folder / "adapters")
        self.upstream = Upstream(limits)
        self.embedded = EmbeddedModel(self._apply)
        self._chat = Chat(
            self.sources, self._key_of, self.keys.redactor, self.workers, self.upstream, self.ledger.record
        )
        self.config_readings = 0
        """How often the configuration has been read."""
        self._peer = peer
        self._folder = folder
        self._from_environment = source_from_environment(environ)
        self._configured: list[Source] = []
        self._embedded_is_allowed = embedded_is_allowed
        self._is_known = asyncio.Event()
        self._is_stale = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self) -> None:
        """Register the methods with the peer; before it starts."""
        peer = self._peer
        peer.serve_stream("provider.chat", self._answer_chat)
        peer.serve("provider.sources", self._list_sources)
        peer.serve("provider.set_key", self._set_key)
        peer.serve("provider.usage", self._usage)
        peer.serve("provider.health", self._health)
        peer.serve_stream("provider.snapshot", self._snapshot)
        peer.on_welcome(self._welcomed)

    async def start(self) -> None:
        """Open what the service keeps; the sources follow with the first welcome.

        :raises Unavailable: the keys or the ledger cannot be used
        """
        await asyncio.to_thread(texts, "provider", language())
        await asyncio.to_thread((self._folder / "adapters").mkdir, mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(self.keys.load)
        await self.ledger.open()
        await asyncio.to_thread(self.ledger.copies.clear)
        self._embedded_is_allowed = self._embedded_is_allowed and await self.embedded.is_installed()
        self._spawn(self._keep_sources_fresh())

    async def stop(self) -> None:
        """Close everything."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.embedded.stop()
        await self.upstream.close()
        await self.workers.close()
        await self.ledger.close()

    async def subscribe(self) -> None:
        """Follow the changes of the configuration; once the peer has started."""
        await self._peer.subscribe(["config.changed"], self._config_changed)
        # What changed between the first reading and now was not told.
        self._is_stale.set()

    # -- methods ------------------------------------------------------------------------------------------------------

    async def _answer_chat(self, body: Any, context: CallContext) -> AsyncIterator[Any]:
        request = parse_chat(body)
        await self._wait_for_sources(context.deadline)
        async with aclosing(self._chat.answer(request, context.deadline)) as items:
            async for item in items:
                yield item

    async def _list_sources(self, body: Any, context: CallContext) -> dict[str, Any]:
        await self._wait_known()
        return {"sources": self.sources.listing(lambda name: self._key_of(name) is not None)}

    async def _set_key(self, body: Any, context: CallContext) -> dict[str, Any]:
        if context.origin.tier != "operator":
            raise Denied(text("provider.only_operator"))
        source, key = (body.get("source"), body.get("key")) if isinstance(body, dict) else (None, None)
        if not isinstance(source, str) or not isinstance(key, str | None):
            raise Invalid(text("provider.bad_source_name"), field="source")
        await asyncio.to_thread(self.keys.set, source, key)
        self.sources.key_changed(source)
        _log.info("key changed", source=source, is_set=bool(key))
        return {}

    async def _usage(self, body: Any, context: CallContext) -> dict[str, Any]:
        since = body.get("since") if isinstance(body, dict) else None
        if since is not None and (not isinstance(since, int | float) or not math.isfinite(since)):
            raise Invalid(text("provider.bad_since"), field="since")
        return await self.ledger.usage(float(since or 0))

    async def _snapshot(self, body: Any, context: CallContext) -> AsyncIterator[Any]:
        backup = body.get("backup") if isinstance(body, dict) else None
        async with aclosing(self.ledger.copies.hold(str(backup or ""))) as items:
            async for item in items:
                yield item

    async def _health(self, body: Any, context: CallContext) -> dict[str, Any]:
        states = [entry["state"] for entry in self.sources.listing(self.keys.is_set)]
        counters = self.workers.counters
        return {
            "state": "running" if self._is_known.is_set() else "starting",
            "sources": {state: states.count(state) for state in sorted(set(states))},
            "embedded": self.embedded.is_running,
            "workers": {"started": counters.started, "killed": counters.killed, "crashed": counters.crashed},
            "ledger_rows_lost": self.ledger.dropped,
        }

    # -- sources ------------------------------------------------------------------------------------------------------

    async def _welcomed(self) -> None:
        self._is_stale.set()

    async def _config_changed(self, event: Event) -> None:
        keys = event.payload.get("keys") if isinstance(event.payload, dict) else None
        if not isinstance(keys, list) or any(str(key).startswith(CONFIG_PREFIX) for key in keys):
            self._is_stale.set()

    async def _keep_sources_fresh(self) -> None:
        """Read the configuration whenever it changed, until it could be read."""
        pause_s = FIRST_RETRY_S
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            try:
                body = {"prefix": CONFIG_PREFIX}
                answer = await self._peer.call("kernel.config_list", body, timeout_s=10.0, idempotent=True)
            except HomeAgentError as error:
                _log.warning("cannot read the configuration, trying again", problem=error.message, in_s=pause_s)
                self._is_stale.set()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)
                continue
            pause_s = FIRST_RETRY_S
            entries = answer.get("entries") if isinstance(answer, dict) else None
            self._configured = sources_from_entries(entries if isinstance(entries, list) else [])
            await self._decide_on_embedded()
            self._apply()
            self._is_known.set()
            self.config_readings += 1

    async def _decide_on_embedded(self) -> None:
        if self._from_environment is not None or self._configured:
            await self.embedded.stop()
        elif self._embedded_is_allowed:
            self.embedded.start()

    def _apply(self) -> None:
        """Make the sources what the environment, the configuration and the embedded model say now."""
        wanted = [source for source in (self._from_environment, self.embedded.source) if source is not None]
        wanted += [source for source in self._configured if source.name not in {s.name for s in wanted}]
        is_starting = self.embedded.is_running and self.embedded.source is None
        changed = self.sources.replace(wanted, starting=self.embedded.as_source if is_starting else None)
        if changed:
            _log.info("sources changed", names=changed)
            for entry in self.sources.in_order()[:1]:
                self._spawn(self.workers.warm(entry.source.adapter))

    def _key_of(self, source: str) -> str | None:
        if source == EMBEDDED and self.embedded.source is not None:
            return self.embedded.key
        return self.keys.get(source)

    async def _wait_known(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOURCES_WAIT_S):
                await self._is_known.wait()

    async def _wait_for_sources(self, deadline: float) -> None:
        await self._wait_known()
        if self.embedded.is_running and self.embedded.source is None:
            await self.embedded.wait_ready(max(0.0, deadline - asyncio.get_running_loop().time() - 1.0))

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
