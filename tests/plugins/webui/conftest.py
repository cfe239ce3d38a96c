from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from homeagent_sdk.testing import FakeKernel
from plugins.webui.main import build
from tests.plugins.live_kernel import LiveKernel

FOLDER = Path("plugins/webui").resolve()


@dataclass
class Web:
    """A running webui and a client of it that has no key of its own."""

    kernel: FakeKernel
    client: aiohttp.ClientSession
    url: str
    data_dir: Path

    def chat(self, key: str = "ha-owner", *, headers: dict[str, str] | None = None, **body: Any) -> Any:
        """Post a chat request; ``say`` is short for one user message."""
        if "say" in body:
            body["messages"] = [{"role": "user", "content": body.pop("say")}]
        body.setdefault("model", "homeagent")
        sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
        data = io.BytesIO(json.dumps(body).encode())
        return self.client.post(f"{self.url}/v1/chat/completions", data=data, headers=sent)

    @asynccontextmanager
    async def stream(self, *, turn: str = "t1", first: str, **body: Any) -> AsyncIterator[tuple[Any, Any]]:
        """Post a streaming request, let the agent say ``first``, and give the response and the turn's feed."""
        assert isinstance(self.kernel, LiveKernel)
        opening = asyncio.create_task(self._open(**body))
        feed = await self.kernel.feed(turn)
        await feed.say(first)
        response = await opening
        try:
            yield response, feed
        finally:
            response.close()

    async def _open(self, **body: Any) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await self.chat(stream=True, **body)
        return response

    async def answer(self, **body: Any) -> dict[str, Any]:
        async with self.chat(**body) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def log_in(self, key: str = "ha-owner") -> None:
        async with self.client.post(f"{self.url}/login", json={"key": key}) as response:
            assert response.status == 200


async def running(kernel: FakeKernel, data_dir: Path, **settings: Any) -> AsyncIterator[Web]:
    kernel.settings["webui"] = {"port": 0, **settings}
    async with kernel.run(build(), FOLDER, data_dir), aiohttp.ClientSession(cookie_jar=unsafe_jar()) as client:
        yield Web(kernel, client, (data_dir / "address").read_text().strip(), data_dir)


def unsafe_jar() -> aiohttp.CookieJar:
    return aiohttp.CookieJar(unsafe=True)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    """A webui before a kernel that answers at once."""
    async for running_web in running(FakeKernel(), tmp_path / "webui"):
        yield running_web


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Web]:
    """A webui before a kernel whose turns stay open until the test ends them."""
    async for running_web in running(LiveKernel(), tmp_path / "webui"):
        yield running_web
