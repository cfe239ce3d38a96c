"""The service as a process on a real bus: its start, its end, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus import KeyCredential, Peer
from homeagent_sdk.paths import DataDir
from kernel.bus import Hub

KEYS = {name: name.ljust(40, "x") for name in ("memory", "provider", "host", "operator")}
LLM_KEY = "zq9-never-to-be-seen"


class House:
    """A hub, a kernel that knows no settings, and the service as a child process."""

    def __init__(self, data: DataDir, kernel: Peer, operator: Peer) -> None:
        self.data = data
        self.kernel = kernel
        self.operator = operator
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, **environment: str) -> int:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HOMEAGENT_", "OPENAI_"))}
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "provider_service", "--data-dir", str(self.data.root)),
            env=inherited | environment,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            while not await self._is_there():  # noqa: ASYNC110, another process has no event for this
                await asyncio.sleep(0.02)
        return self.process.pid

    async def _is_there(self) -> bool:
        return "provider" in [peer["name"] for peer in (await self.operator.call("hub.peers", {}))["peers"]]

    async def chat(self, message: str = "hello", **request: Any) -> dict[str, Any]:
        body = {"request": {"messages": [{"role": "user", "content": message}], **request}, "reason": "turn"}
        async with self.kernel.stream("provider.chat", body, timeout_s=60) as stream:
            return [item async for item in stream][-1]

    async def end(self, number: int) -> tuple[int, str]:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(10):
            _, told = await self.process.communicate()
        return self.process.returncode or 0, told.decode()


async def config_list(body: Any, context: Any) -> Any:
    return {"entries": []}


@asynccontextmanager
async def connected(peer: Peer) -> AsyncIterator[Peer]:
    await peer.start(10)
    try:
        yield peer
    finally:
        await peer.stop()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    data = DataDir(tmp_path / "home").create("run", "keys", "provider", "log")
    data.key_file("provider").write_text(KEYS["provider"])
    hub = Hub(data.run, KEYS)
    hub.start()
    kernel = Peer(data.run, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
    kernel.serve("kernel.config_list", config_list)
    try:
        async with (
            connected(kernel),
            connected(Peer(data.run, KeyCredential("operator-1", KEYS["operator"]))) as operator,
        ):
            made = House(data, kernel, operator)
            yield made
            if made.process is not None and made.process.returncode is None:
                await made.end(signal.SIGKILL)
    finally:
        hub.stop()


def environment_of(url: str) -> dict[str, str]:
    return {"HOMEAGENT_LLM_BASE_URL": url, "HOMEAGENT_LLM_MODEL": "m", "HOMEAGENT_LLM_API_KEY": LLM_KEY}


def shown_by(pids: list[int]) -> str:
    """Return what /proc shows of processes."""
    files = [Path(f"/proc/{pid}/{name}") for pid in pids for name in ("environ", "cmdline")]
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


def family_of(pid: int) -> list[int]:
    """Return a process and its children."""
    return [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def are_gone(pids: list[int]) -> bool:
    """Wait three seconds for processes to end."""
    for _ in range(150):
        if not any(map(is_alive, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_it_answers_shows_no_key_and_stops_in_order(house, fake):
    pid = await house.start(**environment_of(fake.url))
    done = await house.chat("what a day")
    assert done["message"]["content"] == "what a day"
    assert fake.chats[0].headers["Authorization"] == f"Bearer {LLM_KEY}"
    family = family_of(pid)
    assert len(family) == 2, "the service and one adapter worker"
    assert LLM_KEY not in shown_by(family)
    code, told = await house.end(signal.SIGTERM)
    assert (code, told) == (0, "")
    assert await are_gone(family)
    files = [path for path in house.data.root.rglob("*") if path.is_file()]
    assert not [path for path in files if LLM_KEY.encode() in path.read_bytes()]
    assert {"provider_service.log", "usage.db"} <= {path.name for path in files}


async def test_nothing_of_it_survives_its_being_killed(house):
    pid = await house.start()
    async with asyncio.timeout(60):
        done = await house.chat("Say hi.", max_tokens=4)
    assert done["source"] == "embedded"
    family = family_of(pid)
    assert len(family) == 3, "the service, the embedded model and one adapter worker"
    await house.end(signal.SIGKILL)
    assert await are_gone(family)


async def test_without_a_key_file_it_says_what_to_do(tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "provider_service", "--data-dir", str(tmp_path / "home")),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        _, told = await process.communicate()
    assert process.returncode == 1
    assert "provider.key" in told.decode()
    assert "homeagent up" in told.decode()


async def test_a_bad_key_in_the_environment_is_a_matter_of_configuration(house):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HOMEAGENT_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "provider_service", "--data-dir", str(house.data.root)),
        env=inherited | {"HOMEAGENT_LLM_API_KEY": "two words"},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        _, told = await process.communicate()
    assert process.returncode == 3
    assert "two words" not in told.decode()
