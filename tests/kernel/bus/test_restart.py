"""The kernel dies and comes back, with real processes: what its peers notice, and what goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus import CallContext, Event, KeyCredential, Peer
from homeagent_sdk.errors import Cancelled, TimedOut, Unavailable
from tests.kernel.bus.conftest import KEYS, MakePeer, until

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("hub_process.py")


class HubProcess:
    """Starts, kills, freezes and stops hubs, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"},
        )
        self.run_dir = Path()
        self.epoch = ""
        self._pid = 0
        self._hear()

    def close(self) -> None:
        self._process.communicate(timeout=10)

    async def start(self) -> None:
        pid, self.epoch = (await self._tell(f"start {self.run_dir}")).split()
        self._pid = int(pid)

    async def kill(self) -> None:
        await self._tell("kill")
        self._pid = 0

    async def stop(self) -> None:
        if self._pid:
            await self._tell("stop")
            self._pid = 0

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    async def _tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        return await asyncio.wait_for(asyncio.to_thread(self._hear), 15)

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


@pytest.fixture(scope="module")
def hub_process() -> Iterator[HubProcess]:
    process = HubProcess()
    yield process
    process.close()


@pytest.fixture
async def kernel(hub_process: HubProcess, tmp_path: Path) -> AsyncIterator[HubProcess]:
    hub_process.run_dir = tmp_path
    await hub_process.start()
    yield hub_process
    await hub_process.stop()


async def echo(body: Any, call: CallContext) -> Any:
    return body


class Inbox(list[Event]):
    async def __call__(self, event: Event) -> None:
        self.append(event)


async def test_peers_join_the_new_kernel_and_run_their_callbacks_again(kernel: HubProcess, make_peer: MakePeer) -> None:
    memory, operator = await make_peer("memory", serve={"memory.stats": echo}), await make_peer("operator-1")
    welcomes: list[str | None] = []

    async def note() -> None:
        welcomes.append(memory.epoch)

    memory.on_welcome(note)
    old = kernel.epoch
    await kernel.kill()
    await kernel.start()
    assert kernel.epoch != old
    assert await operator.call("memory.stats", 7, timeout_s=10) == 7
    assert operator.epoch == memory.epoch == kernel.epoch
    assert welcomes == [kernel.epoch]


async def test_a_call_made_while_the_kernel_is_away_waits_for_it(kernel: HubProcess, make_peer: MakePeer) -> None:
    await make_peer("memory", serve={"memory.stats": echo})
    operator = await make_peer("operator-1")
    await kernel.kill()
    await until(lambda: not operator.is_welcome)
    waiting = [asyncio.create_task(operator.call("memory.stats", number, timeout_s=15)) for number in range(20)]
    with pytest.raises(Unavailable, match="did not come back"):
        await operator.call("memory.stats", timeout_s=0.1)
    await kernel.start()
    assert await asyncio.gather(*waiting) == list(range(20))


async def test_calls_made_in_the_very_moment_of_the_death_end_one_way_or_the_other(
    kernel: HubProcess, make_peer: MakePeer
) -> None:
    """Those that never left are made again by themselves; those that may have arrived are the caller's to judge."""
    served: list[Any] = []

    async def note(body: Any, call: CallContext) -> Any:
        served.append(body)
        return body

    await make_peer("memory", serve={"memory.stats": note})
    operator = await make_peer("operator-1")
    calls = [asyncio.create_task(operator.call("memory.stats", number, timeout_s=15)) for number in range(200)]
    await asyncio.sleep(0.01)
    kernel.signal(signal.SIGKILL)
    calls += [asyncio.create_task(operator.call("memory.stats", number, timeout_s=15)) for number in range(200, 400)]
    await kernel.kill()
    await kernel.start()
    results = await asyncio.gather(*calls, return_exceptions=True)
    for number, result in enumerate(results):
        if isinstance(result, Unavailable):
            assert result.detail == {"bus": True, "sent": True}
        else:
            assert result == number
    answered = [result for result in results if not isinstance(result, Unavailable)]
    assert len(served) == len(set(served)), "nothing that is not idempotent is done twice"
    assert set(answered) <= set(served)
    assert any(number >= 200 for number in answered)


async def test_of_two_calls_under_way_the_idempotent_one_is_repeated(kernel: HubProcess, make_peer: MakePeer) -> None:
    begun: asyncio.Queue[Any] = asyncio.Queue()

    async def hang_once(body: Any, call: CallContext) -> Any:
        begun.put_nowait(body)
        if begun.qsize() <= 2:
            await asyncio.sleep(60)
        return body

    memory = await make_peer("memory")
    memory.serve("memory.stats", hang_once)
    operator = await make_peer("operator-1")
    once = asyncio.create_task(operator.call("memory.stats", "once", timeout_s=15))
    again = asyncio.create_task(operator.call("memory.stats", "again", timeout_s=15, idempotent=True))
    await until(lambda: begun.qsize() == 2)
    await kernel.kill()
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(once, 2)
    assert caught.value.detail == {"bus": True, "sent": True}
    await kernel.start()
    assert await again == "again"


async def test_a_stream_under_way_ends_with_unavailable(kernel: HubProcess, make_peer: MakePeer) -> None:
    memory, operator = await make_peer("memory"), await make_peer("operator-1")

    async def forever(body: Any, call: CallContext) -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(0.01)

    memory.serve_stream("memory.stats", forever)
    received = []
    with pytest.raises(Unavailable):
        async for number in operator.stream("memory.stats"):
            received.append(number)
            if number == 3:
                await kernel.kill()
    assert received[:4] == [0, 1, 2, 3]


async def test_a_subscription_is_told_of_the_new_epoch_and_counts_from_one(
    kernel: HubProcess, make_peer: MakePeer
) -> None:
    memory, operator, inbox = await make_peer("memory"), await make_peer("operator-1"), Inbox()
    for _ in range(3):
        await memory.publish("memory.appended", "old")
    await memory.call("hub.positions", {"topics": []})  # behind the casts, so that the hub has them all
    await operator.subscribe(["memory.appended"], inbox)
    await memory.publish("memory.appended", "old")
    await until(lambda: len(inbox) == 1)
    await kernel.kill()
    await kernel.start()
    for number in range(3):
        await memory.publish("memory.appended", number)
    await until(lambda: len(inbox) == 5)
    assert [(event.topic, event.sequence) for event in inbox] == [
        ("memory.appended", 4),
        ("ring.epoch", 0),
        ("memory.appended", 1),
        ("memory.appended", 2),
        ("memory.appended", 3),
    ]
    assert inbox[1].payload == {"epoch": kernel.epoch}


async def test_a_subscription_may_be_made_while_the_kernel_is_away(kernel: HubProcess, make_peer: MakePeer) -> None:
    memory, inbox = await make_peer("memory"), Inbox()
    await kernel.kill()
    await until(lambda: not memory.is_welcome)
    subscribing = asyncio.create_task(memory.subscribe(["memory.*"], inbox))
    await kernel.start()
    await asyncio.wait_for(subscribing, 10)
    await memory.publish("memory.appended", 1)
    await until(lambda: len(inbox) == 1)
    assert inbox[0].sequence == 1


async def test_a_frozen_kernel_costs_calls_their_time_and_nothing_else(kernel: HubProcess, make_peer: MakePeer) -> None:
    await make_peer("memory", serve={"memory.stats": echo})
    operator = await make_peer("operator-1")
    kernel.signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimedOut):
            await operator.call("memory.stats", timeout_s=0.1)
    finally:
        kernel.signal(signal.SIGCONT)
    assert await operator.call("memory.stats", 1, timeout_s=5) == 1


async def test_stopping_ends_what_waits_with_cancelled(kernel: HubProcess, make_peer: MakePeer) -> None:
    async def hang(body: Any, call: CallContext) -> Any:
        await asyncio.sleep(60)

    await make_peer("memory", serve={"memory.stats": hang})
    operator = await make_peer("operator-1")
    under_way = asyncio.create_task(operator.call("memory.stats", idempotent=True))
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(operator.stop())
    with pytest.raises(Cancelled):
        await asyncio.wait_for(under_way, 2)
    await stopping
    with pytest.raises(Cancelled):
        await operator.call("memory.stats")
    away = await make_peer("operator-2")
    await kernel.kill()
    await until(lambda: not away.is_welcome)
    waiting = asyncio.create_task(away.call("memory.stats"))
    await asyncio.sleep(0)
    await away.stop()
    with pytest.raises(Cancelled):
        await asyncio.wait_for(waiting, 1)


async def test_a_process_that_dies_is_gone_at_once_and_its_successor_can_be_watched_too(
    kernel: HubProcess, make_peer: MakePeer, tmp_path: Path
) -> None:
    """Its descriptor's number is used again: three deaths in a row would trip over a reader that was left behind."""
    operator = await make_peer("operator-1")
    for _ in range(3):
        service = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import asyncio, sys, pathlib\n"
            "from homeagent_sdk.bus import KeyCredential, Peer\n"
            "async def main():\n"
            "    peer = Peer(pathlib.Path(sys.argv[1]), KeyCredential('memory', 'memory'.ljust(40, 'x')))\n"
            "    await peer.start(5)\n"
            "    print('joined', flush=True)\n"
            "    await asyncio.sleep(60)\n"
            "asyncio.run(main())\n",
            tmp_path,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "sdk")},
        )
        assert service.stdout is not None
        while b"joined" != (await service.stdout.readline()).strip():
            pass
        assert service.pid in await pids(operator)
        begun = asyncio.get_running_loop().time()
        service.kill()
        await service.wait()
        while service.pid in await pids(operator):
            assert asyncio.get_running_loop().time() - begun < 1
    stats = await operator.call("hub.stats")
    assert "faults" not in stats["counters"]


async def pids(operator: Peer) -> set[int]:
    return {peer["pid"] for peer in (await operator.call("hub.peers"))["peers"]}


async def test_start_says_that_there_is_no_kernel(tmp_path: Path) -> None:
    peer = Peer(tmp_path, KeyCredential("memory", KEYS["memory"]))
    with pytest.raises(TimedOut, match="homeagent up"):
        await peer.start(0.1)


async def test_what_a_welcome_has_set_going_ends_with_the_kernel_that_gave_it(
    kernel: HubProcess, make_peer: MakePeer
) -> None:
    memory = await make_peer("memory")
    running: list[str | None] = []
    ended: list[str | None] = []

    async def register() -> None:
        epoch = memory.epoch
        running.append(epoch)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(epoch)

    memory.on_welcome(register)
    epochs = []
    for _ in range(2):
        await kernel.kill()
        await kernel.start()
        await until(lambda: running and running[-1] == kernel.epoch)
        epochs.append(kernel.epoch)
    assert running == epochs
    assert ended == epochs[:1]


async def test_a_peer_that_never_started_leaves_nothing_behind(tmp_path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        peer = Peer(tmp_path, KeyCredential("memory", KEYS["memory"]))
        await peer.stop()
        with pytest.raises(Cancelled):
            await peer.call("memory.stats")
    assert len(os.listdir("/proc/self/fd")) == descriptors
