"""The real hub with a small kernel on it, and the real plugin host as a process."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus import Credential, Peer
from homeagent_sdk.bus.abc import CallContext, Event
from homeagent_sdk.errors import NotFound
from homeagent_sdk.paths import DataDir
from homeagent_sdk.testing import FakeKernel
from kernel.bus.hub import Hub
from plugin_host import orphans

ROGUES = Path(__file__).parent.parent / "rogues"
REPOSITORY = Path(__file__).parent.parent.parent


class Home:
    """A data directory with a hub, a fake kernel, and at most one plugin host."""

    def __init__(self, data_dir: DataDir) -> None:
        self.data_dir = data_dir
        self.builtin = data_dir.root / "bundled"
        self.config: dict[str, Any] = {}
        self.events: list[Event] = []
        self._new_event = asyncio.Event()
        self._keys = {name: secrets.token_hex(32) for name in ("host", "operator")}
        self.host: asyncio.subprocess.Process | None = None

    async def prepare(self) -> None:
        self.data_dir.create()
        self.builtin.mkdir()
        for name, key in self._keys.items():
            self.data_dir.key_file(name).write_text(key)
        await self.start_kernel()

    async def start_kernel(self) -> None:
        self.hub = Hub(self.data_dir.run, self._keys)
        await asyncio.to_thread(self.hub.start)
        self.peer = Peer(
            self.data_dir.run, self.hub.kernel_credential, context=self.hub.context, endpoints=self.hub.endpoints
        )
        self.kernel = FakeKernel(peer=self.peer)
        self.peer.serve("kernel.config_get", self._config_get)
        await self.peer.start()
        await self.peer.subscribe(["plugin.*"], self._on_event)
        self.operator = Peer(self.data_dir.run, Credential.from_key_file("operator-test", self._operator_key()))
        await self.operator.start()

    async def stop_kernel(self) -> None:
        await self.operator.stop()
        await self.peer.stop()
        await asyncio.to_thread(self.hub.stop)

    def _operator_key(self) -> Path:
        return self.data_dir.key_file("operator")

    async def _config_get(self, body: Any, call: CallContext) -> Any:
        if body["key"] not in self.config:
            raise NotFound(f"no key {body['key']}")
        return {"key": body["key"], "value": self.config[body["key"]]}

    async def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._new_event.set()

    async def event(self, topic: str, name: str, count: int = 1, timeout_s: float = 30.0) -> Any:
        """Wait for the count-th event of a plugin and return its payload."""
        async with asyncio.timeout(timeout_s):
            while True:
                matching = [e.payload for e in self.events if e.topic == topic and e.payload["name"] == name]
                if len(matching) >= count:
                    return matching[count - 1]
                self._new_event.clear()
                await self._new_event.wait()

    def add(self, *names: str, tier: str = "builtin") -> None:
        """Put rogues (or bundled plugins) into this home."""
        target = self.builtin if tier == "builtin" else self.data_dir.plugins
        for name in names:
            source = ROGUES / name if (ROGUES / name).is_dir() else REPOSITORY / "plugins" / name
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))

    async def start_host(self) -> asyncio.subprocess.Process:
        command = ["-m", "plugin_host", "--data-dir", str(self.data_dir.root), "--plugins-dir", str(self.builtin)]
        environment = {**os.environ, "HOMEAGENT_LANG": "en", "HOMEAGENT_PARENT_PID": str(os.getpid())}
        self.host = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=environment, cwd=REPOSITORY, stderr=asyncio.subprocess.PIPE
        )
        return self.host

    async def stop_host(self) -> int:
        assert self.host is not None
        if self.host.returncode is None:
            self.host.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.host.communicate(), 15)
        return self.host.returncode or 0

    async def plugins(self) -> dict[str, dict[str, Any]]:
        answer = await self.operator.call("host.plugins", {}, idempotent=True)
        return {plugin["name"]: plugin for plugin in answer["plugins"]}

    async def until(self, name: str, state: str, timeout_s: float = 40.0) -> dict[str, Any]:
        """Wait until a plugin has a state and return its entry."""
        entry: dict[str, Any] = {}
        async with asyncio.timeout(timeout_s):
            while entry.get("state") != state:
                entry = (await self.plugins()).get(name, {})
                if entry.get("state") != state:
                    await asyncio.sleep(0.02)
        return entry

    async def call_tool(self, plugin: str, tool: str, **arguments: Any) -> Any:
        return await self.kernel.call_tool(plugin, tool, arguments)

    def log_of(self, name: str) -> str:
        path = self.data_dir.log / f"plugin-{name}.log"
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[int]:
        """Return all processes below any plugin host of this home."""
        import hashlib

        place = hashlib.sha256(os.fsencode(self.data_dir.root)).hexdigest()[:16]
        return orphans.marked(f"{place}.", is_prefix=True)


@asynccontextmanager
async def _home(tmp_path: Path) -> AsyncIterator[Home]:
    home = Home(DataDir(tmp_path / "data"))
    await home.prepare()
    try:
        yield home
    finally:
        if home.host is not None and home.host.returncode is None:
            await home.stop_host()
        await home.stop_kernel()


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with _home(tmp_path) as ready:
        yield ready
