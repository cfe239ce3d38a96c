"""The service as a process of its own, on the real bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus import Peer
from homeagent_sdk.confine import landlock_abi
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir
from kernel.bus import Hub
from tests.memory_service.samples import an_append
from tests.memory_service.sockets import inet_sockets

KEY = "memory".ljust(40, "x")


class Service:
    """A memory service that a test starts, kills and starts again."""

    def __init__(self, data: DataDir) -> None:
        self.data = data
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> int:
        command = [sys.executable, "-m", "memory_service", "--data-dir", str(self.data.root)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        return self.process.pid

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Signal the process and return its exit code and what it wrote to stderr."""
        assert self.process is not None and self.process.stderr is not None
        self.process.send_signal(number)
        try:
            code = self.process.wait(timeout=20)
        finally:
            self.process.kill()
        with self.process.stderr as stderr:
            told = stderr.read()
        self.process = None
        return code, told


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "d").create()
    data.key_file("memory").write_text(KEY)
    return data


@pytest.fixture
def service(data: DataDir) -> Iterator[Service]:
    service = Service(data)
    yield service
    if service.process is not None:
        service.end(signal.SIGKILL)


@pytest.fixture
async def kernel(data: DataDir) -> AsyncIterator[Peer]:
    hub = Hub(data.run, {"memory": KEY})
    await asyncio.to_thread(hub.start)
    peer = Peer(data.run, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
    await peer.start()
    yield peer
    await peer.stop()
    await asyncio.to_thread(hub.stop)


async def call(kernel: Peer, method: str, body: Any = None) -> Any:
    return await kernel.call(method, body, timeout_s=20, idempotent=True)


async def test_it_serves_and_stops_when_told(service: Service, kernel: Peer) -> None:
    service.start()
    assert await call(kernel, "memory.append", an_append("t1", "我的自行车停在地下车库")) == {"stored": True}
    answer = await call(kernel, "memory.recall", {"query": "自行车停在哪里？", "audience": ["owner"]})
    assert [hit["id"] for hit in answer["hits"]] == ["t1"]
    assert (await call(kernel, "memory.health"))["state"] == "running"
    assert await asyncio.to_thread(service.end, signal.SIGTERM) == (0, "")


async def test_what_is_stored_is_found_by_meaning_within_seconds(service: Service, kernel: Peer) -> None:
    service.start()
    await call(kernel, "memory.append", an_append("t1", "我的自行车停在地下车库"))
    asked = {"query": "Where did I park my bicycle?", "audience": ["owner"]}
    async with asyncio.timeout(30):
        while not (hits := (await call(kernel, "memory.recall", asked))["hits"]):  # noqa: ASYNC110 - loading has no event
            await asyncio.sleep(0.1)
    assert [hit["id"] for hit in hits] == ["t1"]
    vectors = (await call(kernel, "memory.health"))["vectors"]
    assert vectors["encoder"]["encoder"] == "use"
    began = asyncio.get_running_loop().time()
    await call(kernel, "memory.append", an_append("t2", "奶奶每天早上喝普洱茶"))
    asked["query"] = "What does grandmother drink in the morning?"
    while "t2" not in [hit["id"] for hit in (await call(kernel, "memory.recall", asked))["hits"]]:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert asyncio.get_running_loop().time() - began < 2.0


@pytest.mark.chaos
async def test_killed_and_started_again_it_remembers(service: Service, kernel: Peer) -> None:
    service.start()
    await call(kernel, "memory.append", an_append("t1", "the safe opens with 4711"))
    await asyncio.to_thread(service.end, signal.SIGKILL)
    service.start()
    answer = await call(kernel, "memory.recall", {"query": "safe", "audience": ["owner"]})
    assert [hit["id"] for hit in answer["hits"]] == ["t1"]


async def test_it_holds_no_internet_socket_and_cannot_get_one(service: Service, kernel: Peer, data: DataDir) -> None:
    pid = service.start()
    await call(kernel, "memory.append", an_append("t1"))
    await call(kernel, "memory.recall", {"query": "自行车", "audience": ["owner"]})
    assert inet_sockets(pid) == []
    await asyncio.to_thread(service.end, signal.SIGTERM)
    lines = (data.log / "memory_service.log").read_text().splitlines()
    (opened,) = [line for line in map(json.loads, lines) if line["event"] == "memory opened"]
    assert opened["confinement"]["tcp"] == (landlock_abi() >= 4)
    assert opened["confinement"]["files"] == (landlock_abi() >= 1)


def test_a_process_with_an_internet_socket_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp 0100007F:{server.getsockname()[1]:04X}"
        assert address in inet_sockets(os.getpid())


async def test_everything_it_makes_is_for_its_owner_only(service: Service, kernel: Peer, data: DataDir) -> None:
    service.start()
    await call(kernel, "memory.append", an_append("t1"))
    files = [data.memory, *data.memory.rglob("*"), *data.log.rglob("*")]
    assert [str(file) for file in files if file.stat().st_mode & 0o077] == []


async def test_before_the_kernel_is_there_it_waits_and_still_stops_when_told(service: Service, data: DataDir) -> None:
    service.start()
    await asyncio.to_thread(wait_for, data.memory / "memory.db")
    assert service.process is not None and service.process.poll() is None
    # Its handlers are in place before it opens the database.
    assert await asyncio.to_thread(service.end, signal.SIGTERM) == (0, "")


def test_a_broken_database_ends_it_with_what_to_do(data: DataDir) -> None:
    (data.memory / "memory.db").write_bytes(b"not a database " * 500)
    done = run_once(data)
    assert done.returncode != 0
    assert "not a database" in done.stderr and "put back a backup" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_key_ends_it_with_what_to_do(data: DataDir) -> None:
    data.key_file("memory").unlink()
    done = run_once(data)
    assert done.returncode != 0
    assert "homeagent up" in done.stderr
    assert "Traceback" not in done.stderr


async def test_a_wrong_key_ends_it(data: DataDir, kernel: Peer) -> None:
    data.key_file("memory").write_text("y" * 40)
    done = await asyncio.to_thread(run_once, data)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 20
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.02)


def run_once(data: DataDir) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memory_service", "--data-dir", str(data.root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


async def test_an_error_crosses_the_bus_typed(service: Service, kernel: Peer) -> None:
    service.start()
    with pytest.raises(HomeAgentError) as caught:
        await call(kernel, "memory.recall", {"query": "x", "audience": []})
    assert (caught.value.code, caught.value.field) == ("invalid", "audience")
