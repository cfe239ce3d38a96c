"""The hub as a thing of the operating system: files, locks, threads; and peers that do not read."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from homeagent_sdk.bus import CallContext, prove, wire
from homeagent_sdk.errors import Conflict, Internal, Invalid, Overloaded, Unavailable
from kernel.bus import Hub
from kernel.bus.access import METHODS
from tests.kernel.bus.conftest import KEYS, MakePeer, RawSocket, die, until

SOCKETS = ("control.sock", "urgent.sock", "events.sock")


async def echo(body: Any, call: CallContext) -> Any:
    return body


# -- files and threads ------------------------------------------------------------------------------------------------


def test_the_sockets_are_for_owner_and_group(tmp_path: Path) -> None:
    hub = Hub(tmp_path, KEYS)
    hub.start()
    try:
        modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (*SOCKETS, "hub.lock")}
    finally:
        hub.stop()
    assert modes == {**dict.fromkeys(SOCKETS, 0o660), "hub.lock": 0o600}


def test_stopping_leaves_no_socket_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    def once() -> None:
        hub = Hub(tmp_path, KEYS)
        hub.start()
        hub.stop()
        hub.stop()

    once()
    gc.collect()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        once()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub.lock"]


def test_two_hubs_in_one_directory_are_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    first, second = Hub(tmp_path, KEYS), Hub(tmp_path, KEYS)
    first.start()
    with pytest.raises(Conflict, match="another kernel runs"):
        second.start()
    second.stop()
    assert all((tmp_path / name).exists() for name in SOCKETS)
    first.stop()
    third = Hub(tmp_path, KEYS)
    third.start()
    third.stop()


def test_the_socket_files_of_a_killed_kernel_are_in_nobodys_way(tmp_path: Path) -> None:
    for name in SOCKETS:
        (tmp_path / name).touch()
    hub = Hub(tmp_path, KEYS)
    hub.start()
    assert all(stat.S_ISSOCK((tmp_path / name).stat().st_mode) for name in SOCKETS)
    hub.stop()


def test_a_directory_that_cannot_hold_sockets_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="missing"):
        Hub(tmp_path / "missing", KEYS).start()
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    with pytest.raises(Unavailable, match=r"bytes.*shorter path"):
        Hub(deep, KEYS).start()
    (tmp_path / "control.sock").mkdir()
    hub = Hub(tmp_path, KEYS)
    with pytest.raises(Unavailable, match="cannot be bound"):
        hub.start()
    (tmp_path / "control.sock").rmdir()
    again = Hub(tmp_path, KEYS)
    again.start()
    again.stop()


async def test_peers_hear_that_the_kernel_stops(tmp_path: Path, make_peer: MakePeer) -> None:
    hub = Hub(tmp_path, KEYS)
    hub.start()
    memory = await make_peer("memory")
    await asyncio.to_thread(hub.stop)
    await until(lambda: not memory.is_welcome, 1)


async def test_changes_of_peers_are_told(tmp_path: Path, make_peer: MakePeer) -> None:
    changes: list[tuple[str, str]] = []
    hub = Hub(tmp_path, KEYS, lambda peer, what: changes.append((peer["name"], what)))
    hub.start()
    memory = await make_peer("memory")
    await memory.stop()
    await until(lambda: len(changes) == 2)
    assert changes == [("memory", "up"), ("memory", "gone")]
    await asyncio.to_thread(hub.stop)


# -- hub.* ------------------------------------------------------------------------------------------------------------


async def test_every_hub_method_of_the_table_is_answered_and_no_other(hub: Hub) -> None:
    assert hub._methods.names == {method for method in METHODS if method.startswith("hub.")}


async def test_peers_and_stats_are_listed(hub: Hub, make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    await make_peer("echo", "external", 4)
    peers = {peer["name"]: peer for peer in (await kernel.call("hub.peers"))["peers"]}
    assert set(peers) == {"kernel", "echo"}
    assert (
        peers["echo"].items() >= {"tier": "external", "generation": 4, "state": "running", "pid": os.getpid()}.items()
    )
    stats = await kernel.call("hub.stats")
    assert stats["epoch"] == hub.epoch
    assert {"calls_under_way", "calls_parked", "counters", "ring"} <= set(stats)


async def test_the_host_mints_tokens(hub: Hub, make_peer: MakePeer) -> None:
    host = await make_peer("host")
    answer = await host.call("hub.mint_token", {"name": "echo", "generation": 1, "tier": "builtin"})
    assert len(answer["token"]) == 64
    for body in ({}, None, [], {"name": "echo"}, {"name": "echo", "generation": "x", "tier": "builtin"}):
        with pytest.raises(Invalid):
            await host.call("hub.mint_token", body)


async def test_lag_is_measured_once_at_a_time(hub: Hub, make_peer: MakePeer) -> None:
    kernel, operator = await make_peer("kernel"), await make_peer("operator-1")
    measuring = asyncio.create_task(kernel.call("hub.lag", {"seconds": 0.2}))
    await until(lambda: hub._methods._lag is not None)
    with pytest.raises(Overloaded):
        await operator.call("hub.lag", {"seconds": 60})
    assert {"p50_ms", "p99_ms", "max_ms", "samples"} == set(await measuring)


async def test_positions_of_too_many_topics_are_refused(hub: Hub, make_peer: MakePeer) -> None:
    memory = await make_peer("memory")
    with pytest.raises(Invalid):
        await memory.call("hub.positions", {"topics": ["a"] * 65})


# -- large and broken things ------------------------------------------------------------------------------------------


async def test_a_message_beyond_the_limit_is_refused_on_either_side(hub: Hub, make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")

    async def huge(body: Any, call: CallContext) -> Any:
        return b"x" * wire.MAX_MESSAGE_BYTES

    await make_peer("memory", serve={"memory.stats": huge, "memory.health": echo})
    with pytest.raises(Invalid, match="a message holds"):
        await kernel.call("memory.stats", b"x" * wire.MAX_MESSAGE_BYTES)
    with pytest.raises(Internal, match=r"cannot be sent.*a message holds"):
        await kernel.call("memory.stats")
    almost = b"x" * (wire.MAX_MESSAGE_BYTES - wire.MAX_HEADER_BYTES - 100)
    assert len(await kernel.call("memory.health", almost)) == len(almost)


async def test_many_blobs_come_back_in_their_places(hub: Hub, make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    await make_peer("memory", serve={"memory.stats": echo})
    body = {"media": [{"n": n, "data": bytes([n]) * (wire.BLOB_THRESHOLD_BYTES + n)} for n in range(70)]}
    assert await kernel.call("memory.stats", body) == body


async def test_an_answer_that_cannot_be_sent_is_an_error_for_its_caller_at_once(hub: Hub, make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")

    async def bad(body: Any, call: CallContext) -> Any:
        if body == "detail":
            raise Invalid("no", detail={"what": object()})
        return object()

    async def bad_items(body: Any, call: CallContext) -> AsyncIterator[Any]:
        yield 1
        yield {1, 2}

    memory = await make_peer("memory", serve={"memory.stats": bad})
    memory.serve_stream("memory.search", bad_items)
    for body in ("value", "detail"):
        with pytest.raises(Internal, match="cannot be sent"):
            await kernel.call("memory.stats", body, timeout_s=2)
    with pytest.raises(Internal, match="cannot be sent"):
        async for _ in kernel.stream("memory.search", timeout_s=2):
            pass


# -- peers that do not read -------------------------------------------------------------------------------------------


def join(control: Any, name: str) -> None:
    """Say hello over a raw socket, as docs/protocol.md says."""
    hello = {"name": name, "generation": 0, "protocols": [1]}
    control.send_multipart([msgpack.packb({"v": 1, "k": "hello"}), msgpack.packb(hello)])
    nonce = msgpack.unpackb(control.recv_multipart()[1])["nonce"]
    proof = {"nonce": nonce, "proof": prove(KEYS[name.partition("-")[0]], name, nonce)}
    control.send_multipart([msgpack.packb({"v": 1, "k": "hello"}), msgpack.packb({**hello, **proof})])
    assert msgpack.unpackb(control.recv_multipart()[0])["k"] == "welcome"


async def test_a_peer_that_asks_and_never_reads_is_dropped_and_others_do_not_notice(
    hub: Hub, make_peer: MakePeer, raw_socket: RawSocket
) -> None:
    kernel = await make_peer("kernel")
    await make_peer("memory", serve={"memory.stats": echo})
    deaf = raw_socket(mark=1)
    await asyncio.to_thread(join, deaf, "operator-deaf")
    body = msgpack.packb("x" * 60_000)
    worst = 0.0
    for number in range(1, 1500):
        if hub._switchboard.peers.named("operator-deaf") is None:
            break
        header = {"v": 1, "k": "call", "i": number, "m": "memory.stats"}
        await asyncio.to_thread(deaf.send_multipart, [msgpack.packb(header), body])
        if number % 50 == 0:
            begun = time.monotonic()
            assert await kernel.call("memory.stats", number, timeout_s=5) == number
            worst = max(worst, time.monotonic() - begun)
    await until(lambda: hub._switchboard.peers.named("operator-deaf") is None)
    assert hub._switchboard.counters["dropped_peers"] == 1
    assert worst < 1.0


async def test_a_callee_that_does_not_read_costs_its_own_callers_only(
    hub: Hub, make_peer: MakePeer, raw_socket: RawSocket
) -> None:
    kernel = await make_peer("kernel")
    await make_peer("provider", serve={"provider.sources": echo})
    deaf = raw_socket(mark=1)
    await asyncio.to_thread(join, deaf, "memory")
    calls = [asyncio.create_task(kernel.call("memory.append", "x" * 60_000, timeout_s=1.5)) for _ in range(900)]
    await until(lambda: hub._switchboard.counters["calls_refused_full"] > 0)
    begun = time.monotonic()
    assert await kernel.call("provider.sources", 1, timeout_s=2) == 1
    assert time.monotonic() - begun < 1.0
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result).__name__ for result in results} == {"TimedOut", "Overloaded"}
    memory = hub._switchboard.peers.named("memory")
    assert memory is not None
    assert memory.outbox_bytes <= 32 * 1024 * 1024


async def test_a_message_whose_signal_a_send_has_swallowed_is_noticed(hub: Hub, make_peer: MakePeer) -> None:
    """The descriptor of a socket is edge-triggered, and sending takes the edge away."""
    kernel = await make_peer("kernel")
    memory = await make_peer("memory", serve={"memory.stats": echo})
    assert await kernel.call("memory.stats", 0, timeout_s=2) == 0
    remote = hub._switchboard.peers.named("memory")
    assert remote is not None
    assert hub._loop is not None
    for number in range(1, 6):
        asleep = threading.Event()

        def send_late(asleep: threading.Event = asleep) -> None:
            asleep.set()
            time.sleep(0.05)
            hub._guard(hub._switchboard._outlets.fail, remote, 2**40, Internal("of no call"))

        hub._loop.call_soon_threadsafe(send_late)
        await asyncio.to_thread(asleep.wait, 2)
        assert await kernel.call("memory.stats", number, timeout_s=0.8) == number
    assert memory._outgoing.late_answers == 5


async def test_a_restarting_plugin_loses_its_calls_and_gets_new_ones(hub: Hub, make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    first = await make_peer("echo", "builtin", 1)
    begun = asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        begun.set()
        await asyncio.sleep(60)

    first.serve("echo.tool", hang)
    call = asyncio.create_task(kernel.call("echo.tool", 1, timeout_s=10))
    await begun.wait()
    await make_peer("echo", "builtin", 2, serve={"echo.tool": echo})
    with pytest.raises(Unavailable):
        await call
    assert await kernel.call("echo.tool", 2, timeout_s=2) == 2
    await die(first)
    assert await kernel.call("echo.tool", 3, timeout_s=2) == 3


async def test_handlers_that_do_not_end_do_not_keep_a_peer_from_stopping(
    hub: Hub, make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homeagent_sdk.bus.incoming._STOP_S", 0.1)
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn(body: Any, call: CallContext) -> Any:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await release.wait()

    memory.serve("memory.stats", stubborn)
    call = asyncio.create_task(kernel.call("memory.stats", timeout_s=10))
    await begun.wait()
    await asyncio.wait_for(memory.stop(), 2)
    with pytest.raises(Unavailable):
        await call
    release.set()
