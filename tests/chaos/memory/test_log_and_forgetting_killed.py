"""``kill -9`` of the memory service while it writes the log of conversations, and while it forgets."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.bus import KeyCredential, Peer
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir
from kernel.bus import Hub

pytestmark = pytest.mark.chaos

MEMORY_KEY, OPERATOR_KEY = "memory".ljust(40, "x"), "operator".ljust(40, "x")
SECRET = "zebraquokka77"


class Service:
    """The real memory service, and the bus that it is on."""

    def __init__(self, data: DataDir, operator: Peer) -> None:
        self.data = data
        self.operator = operator
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "memory_service", "--data-dir", str(self.data.root)]
        self.process = subprocess.Popen(command)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        try:
            self.process.wait(timeout=20)
        finally:
            self.process.kill()
        self.process = None

    async def call(self, method: str, body: Any) -> Any:
        return await self.operator.call(method, body, timeout_s=60, idempotent=True)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "d").create()
    data.key_file("memory").write_text(MEMORY_KEY)
    return data


@pytest.fixture
async def operator(data: DataDir) -> AsyncIterator[Peer]:
    """Return the operator on a bus with a kernel that has nothing to forget and the usual settings."""
    hub = Hub(data.run, {"memory": MEMORY_KEY, "operator": OPERATOR_KEY})
    await asyncio.to_thread(hub.start)
    kernel = Peer(data.run, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
    operator = Peer(data.run, KeyCredential("operator-1", OPERATOR_KEY))

    async def settings(body: Any, call: Any) -> Any:
        return {"entries": [{"key": "core.memory.conversation_log", "value": True}]}

    async def forget(body: Any, call: Any) -> Any:
        return {"turns": 0, "unfinished": 0, "earlier": 0, "erased": True}

    async def register(body: Any, call: Any) -> Any:
        return {}

    kernel.serve("kernel.config_list", settings)
    kernel.serve("kernel.forget", forget)
    kernel.serve("kernel.register", register)
    await kernel.start()
    await operator.start()
    yield operator
    await operator.stop()
    await kernel.stop()
    await asyncio.to_thread(hub.stop)


@pytest.fixture
def service(data: DataDir, operator: Peer) -> Iterator[Service]:
    service = Service(data, operator)
    yield service
    if service.process is not None:
        service.end(signal.SIGKILL)


def some_lines(first: int, count: int, text: str = "the weather") -> list[dict[str, Any]]:
    return [
        {"id": f"e{number}", "time": 1_796_113_800.0 + number, "speaker": "Ann", "peer": "ann", "text": text}
        for number in range(first, first + count)
    ]


def stored(data: DataDir) -> list[str]:
    """Return the ids of all events, in the order in which they were stored."""
    connection = apsw.Connection(str(data.memory / "memory.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [id for (id,) in connection.execute("SELECT id FROM event ORDER BY number")]
    finally:
        connection.close()


def logged(data: DataDir) -> list[str]:
    """Return the ids of all whole lines of the log, in their order."""
    files = sorted((data.memory / "conversations").glob("*.jsonl"), key=lambda path: (len(path.name), path.name))
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    return [json.loads(line)["id"] for line in lines if line.endswith("\n")]


def files_with(folder: Path, word: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


async def in_step(data: DataDir) -> None:
    """Wait until the log has everything that is stored."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(logged, data) != await asyncio.to_thread(stored, data):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_log_has_every_event_once_however_often_it_is_killed(service: Service, data: DataDir) -> None:
    chance, number = random.Random(1), 0
    for _ in range(12):
        service.start()
        kill = asyncio.get_running_loop().time() + 1.0 + chance.random() * 1.5
        while asyncio.get_running_loop().time() < kill:
            lines = some_lines(number, chance.randrange(1, 40))
            number += len(lines)
            try:
                await service.operator.call("memory.import", {"events": lines}, timeout_s=2)
            except HomeAgentError:
                continue
            await asyncio.sleep(chance.random() * 0.1)
        await asyncio.to_thread(service.end, signal.SIGKILL)
        assert len(set(logged(data))) == len(logged(data))
    service.start()
    await in_step(data)
    assert len(stored(data)) > 100
    await asyncio.to_thread(service.end, signal.SIGTERM)
    assert logged(data) == stored(data)


async def test_forgetting_that_is_killed_is_finished_by_doing_it_again(service: Service, data: DataDir) -> None:
    chance, killed = random.Random(2), 0
    service.start()
    await service.call("memory.import", {"events": some_lines(0, 200)})
    # How long it takes where nobody kills it, and so when a kill falls into it.
    whole = some_lines(5_000, 400)
    await service.call("memory.import", {"events": whole})
    began = asyncio.get_running_loop().time()
    await service.call("memory.forget", {"after": whole[0]["time"], "before": whole[-1]["time"] + 1})
    usual_s = asyncio.get_running_loop().time() - began
    for turn in range(1, 11):
        secrets = some_lines(10_000 * turn, 400, f"{SECRET} {turn}")
        await service.call("memory.import", {"events": secrets})
        await in_step(data)
        selection = {"after": secrets[0]["time"], "before": secrets[-1]["time"] + 1}
        forgetting = asyncio.create_task(service.operator.call("memory.forget", selection, timeout_s=60))
        await asyncio.sleep(chance.random() * usual_s)
        killed += not forgetting.done()
        await asyncio.to_thread(service.end, signal.SIGKILL)
        await asyncio.gather(forgetting, return_exceptions=True)
        service.start()
        answer = await service.call("memory.forget", selection)
        assert answer["complete"]
        assert await asyncio.to_thread(files_with, data.root, SECRET) == []
        known = await service.call("memory.known", {"ids": [line["id"] for line in secrets]})
        assert known["missing"] == [] and len(known["forgotten"]) == 400
        refused = await service.call("memory.import", {"events": secrets})
        assert refused == {"stored": 0, "known": 0, "forgotten": 400}
    assert killed >= 3, "forgetting was hardly ever interrupted"
    await in_step(data)
    assert stored(data) == [f"e{number}" for number in range(200)]
    *_, report = [item async for item in service.operator.stream("memory.verify", {})]
    assert report["ok"], report


async def test_the_next_start_finishes_what_was_begun(service: Service, data: DataDir) -> None:
    service.start()
    await service.call("memory.import", {"events": some_lines(0, 500, SECRET)})
    await in_step(data)
    forgetting = asyncio.create_task(service.operator.call("memory.forget", {"principal": "ann"}, timeout_s=60))
    async with asyncio.timeout(30):
        while len(await asyncio.to_thread(stored, data)) == 500:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.to_thread(service.end, signal.SIGKILL)
    await asyncio.gather(forgetting, return_exceptions=True)
    left = set(stored(data))
    assert len(left) < 500
    service.start()
    async with asyncio.timeout(30):
        while not (await service.call("memory.forget", {"ids": ["e0"], "dry_run": True}))["complete"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert set(await asyncio.to_thread(logged, data)) == left
    # What had not been reached stays, since nobody asked again.
    assert set(stored(data)) == left
