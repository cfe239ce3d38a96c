"""A provider service on a bus in memory, with real adapter workers, before the scripted far end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.testing.local_bus import LocalBus, LocalPeer
from provider_service.adapter_workers import AdapterWorkers
from provider_service.service import BUNDLED_ADAPTERS, ProviderService
from provider_service.upstream import Limits
from tests.fakes.openai_server import FakeOpenAI


@dataclass
class Stage:
    """The service and those who talk to it."""

    service: ProviderService
    bus: LocalBus
    kernel: LocalPeer
    operator: LocalPeer
    folder: Path
    entries: list[dict[str, Any]] = field(default_factory=list)

    async def configure(self, **sources: dict[str, Any]) -> None:
        """Make these the configured sources."""
        self.entries[:] = [
            {"key": f"core.llm.sources.{name}.{key}", "value": value}
            for name, values in sources.items()
            for key, value in values.items()
        ]
        before = self.service.config_readings
        await self.kernel.publish("config.changed", {"keys": ["core.llm.sources.x.model"]})
        while self.service.config_readings == before:  # noqa: ASYNC110, the service has no event for this
            await asyncio.sleep(0.002)

    async def chat(self, message: str | list[dict[str, Any]] = "hello", **request: Any) -> list[dict[str, Any]]:
        """Return the items of an answer."""
        messages = [{"role": "user", "content": message}] if isinstance(message, str) else message
        body = {
            "request": {"messages": messages, "model": "auto", **request},
            "reason": "turn",
            "turn_id": "t1",
            "lane": {"channel": "cli", "conversation": "main"},
        }
        async with self.kernel.stream("provider.chat", body) as stream:
            return [item async for item in stream]

    async def done(self, *arguments: Any, **request: Any) -> dict[str, Any]:
        """Return the last item of an answer."""
        return (await self.chat(*arguments, **request))[-1]

    async def state_of(self, name: str) -> dict[str, Any]:
        """Return what is listed of a source."""
        listing = (await self.kernel.call("provider.sources", {}))["sources"]
        return next(source for source in listing if source["name"] == name)


def at(server: FakeOpenAI, **values: Any) -> dict[str, Any]:
    """Return the settings of a source at a server."""
    return {"base_url": server.url, "model": "m", **values}


def words(items: list[dict[str, Any]]) -> str:
    """Return the text that was shown."""
    return "".join(item["text"] for item in items if item["type"] == "delta")


async def outcomes(stage: Stage) -> list[tuple[str, str]]:
    """Return source and outcome of all calls, oldest first."""
    usage = await stage.kernel.call("provider.usage", {"since": 0})
    return [(row["source"], row["outcome"]) for row in reversed(usage["rows"])]


@asynccontextmanager
async def running(folder: Path, environ: dict[str, str], key: str | None, **options: Any) -> AsyncIterator[Stage]:
    bus = LocalBus()
    kernel, operator, peer = bus.peer("kernel", "kernel"), bus.peer("operator-1", "operator"), bus.peer("provider")
    secrets = {"HOMEAGENT_LLM_API_KEY": key} if key else {}
    options = {"embedded_is_allowed": False, **options}
    service = ProviderService(peer, folder, environ=environ, secrets=secrets, **options)
    stage = Stage(service, bus, kernel, operator, folder)

    async def config_list(body: Any, context: Any) -> Any:
        return {"entries": stage.entries}

    kernel.serve("kernel.config_list", config_list)
    service.serve()
    await service.start()
    try:
        await peer.start()
        await service.subscribe()
        yield stage
    finally:
        await service.stop()


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
async def second() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


QUICK = Limits(connect_s=2, first_byte_s=0.5, idle_s=0.5, total_s=10, after_finish_s=0.2, response_bytes=200_000)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A service without any source."""
    async with running(tmp_path / "provider", {}, None, limits=QUICK) as stage:
        yield stage


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[AdapterWorkers]:
    pool = AdapterWorkers(BUNDLED_ADAPTERS, tmp_path / "adapters", call_limit_s=15.0)
    (tmp_path / "adapters").mkdir()
    yield pool
    await pool.close()


@pytest.fixture
async def one(stage: Stage, fake: FakeOpenAI) -> Stage:
    """A service with one source, ``a``."""
    await stage.configure(a=at(fake))
    return stage


@pytest.fixture
async def two(stage: Stage, fake: FakeOpenAI, second: FakeOpenAI) -> Stage:
    """A service with the sources ``a`` (first) and ``b``."""
    await stage.configure(a=at(fake), b=at(second, model="n"))
    return stage
