from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from homeagent import chat_connection, client
from homeagent.command import build_app
from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir
from homeagent_sdk.testing import LocalBus


@dataclass
class Ended:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class FakeSystem:
    """A running HomeAgent as the commands see it: replies by method; all calls are written down."""

    bus: LocalBus = field(default_factory=LocalBus)
    replies: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def answer(self, method: str, reply: Any) -> None:
        """Answer a method with a value, an error, or what a function makes of the request."""
        name = method.partition(".")[0]
        peer = self.bus.peers.get(name) or self.bus.peer(name)
        self.replies[method] = reply

        async def handle(body: Any, _: CallContext) -> Any:
            self.calls.append((method, body))
            found = self.replies[method]
            if isinstance(found, HomeAgentError):
                raise found
            return found(body) if callable(found) else found

        peer.serve(method, handle)

    def stream(self, method: str, items: Iterable[Any]) -> None:
        """Answer a streaming method with some items; an error among them ends it."""
        name = method.partition(".")[0]
        peer = self.bus.peers.get(name) or self.bus.peer(name)

        async def handle(body: Any, _: CallContext) -> AsyncIterator[Any]:
            self.calls.append((method, body))
            for item in items:
                if isinstance(item, HomeAgentError):
                    raise item
                yield item

        peer.serve_stream(method, handle)

    def called(self, method: str) -> list[Any]:
        """Return the bodies with which a method was called, in order."""
        return [body for name, body in self.calls if name == method]


STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "epoch": "e1",
    "started_at": 1_796_000_000.0,
    "ready": True,
    "services": [
        {"name": name, "state": "running", "detail": ""}
        for name in ("kernel", "memory_service", "provider_service", "plugin_host")
    ],
    "plugins": [{"name": name, "state": "running", "detail": ""} for name in ("webui", "cli")],
    "turns": {"running": 1, "waiting": 2, "finished": 3},
    "channels": ["webui", "cli"],
}
SOURCE: dict[str, Any] = {
    "name": "deepseek",
    "model": "deepseek-chat",
    "adapter": "openai",
    "base_url": "https://api.example.com/v1",
    "context_window": 65536,
    "vision": False,
    "audio": False,
    "tools": True,
    "state": "ready",
    "reason": "",
    "embedded": False,
    "key_set": True,
}


def entry(key: str, value: Any, kind: str = "string", **more: Any) -> dict[str, Any]:
    """Return a configuration entry as the kernel describes it."""
    described = {"en": f"what {key} means", "zh": f"{key} 的含义"}
    return {
        "key": key,
        "value": value,
        "default": None,
        "type": kind,
        "description": described,
        "secret": kind == "secret",
        "source": "default",
        **more,
    }


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data").create()


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FakeSystem:
    """A running system, with nothing wrong."""
    fake = FakeSystem()
    fake.answer("kernel.status", STATUS)
    fake.answer("provider.sources", {"sources": [SOURCE]})
    fake.answer("host.plugins", {"plugins": [], "zygote_pid": None})
    fake.answer("kernel.turn_ids", {"turns": [], "after": None})
    fake.stream("memory.verify", [{"checked": 1, "of": 1}, {"ok": True, "checks": []}])
    for module in (client, chat_connection):
        monkeypatch.setattr(module, "is_running", lambda _: True)
    monkeypatch.setattr(client, "open_peer", lambda _: fake.bus.peer("operator-1", "operator"))
    return fake


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEAGENT_LANG", "en")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HOMEAGENT_DATA_DIR", raising=False)


Command = Callable[..., Ended]


@pytest.fixture
def homeagent(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Run a command line in this process, on the data directory of the test."""
    monkeypatch.setenv("HOMEAGENT_DATA_DIR", str(data.root))

    def run(*arguments: str, stdin: str = "") -> Ended:
        result = CliRunner().invoke(build_app(), list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    yield run
