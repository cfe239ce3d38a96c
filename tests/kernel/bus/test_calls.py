"""Calls, casts, streams, cancels and deadlines between real peers over a real hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from homeagent_sdk.bus import CallContext
from homeagent_sdk.errors import Cancelled, Conflict, Denied, Internal, Invalid, NotFound, TimedOut, Unavailable
from tests.kernel.bus.conftest import MakePeer, die


async def echo(body: Any, call: CallContext) -> Any:
    return {"body": body, "origin": [call.origin.name, call.origin.tier]}


pytestmark = pytest.mark.usefixtures("hub")


async def test_a_call_is_answered_and_names_its_origin(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    memory.serve("memory.recall", echo)
    answer = await kernel.call("memory.recall", {"query": "猫"})
    assert answer == {"body": {"query": "猫"}, "origin": ["kernel", "kernel"]}


async def test_large_bytes_travel_beside_the_body(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    memory.serve("memory.recall", echo)
    picture = bytes(range(256)) * 4096
    answer = await kernel.call("memory.recall", {"media": [{"data": picture}], "small": b"abc"})
    assert bytes(answer["body"]["media"][0]["data"]) == picture
    assert answer["body"]["small"] == b"abc"


async def test_typed_errors_cross_the_bus_and_untyped_ones_lose_their_traceback(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")

    async def fail(body: Any, call: CallContext) -> Any:
        if body == "typed":
            raise Invalid("no such day", field="date", hint="write 2026-11-30", detail={"day": 31})
        raise ZeroDivisionError("secret path")

    memory.serve("memory.recall", fail)
    with pytest.raises(Invalid) as caught:
        await kernel.call("memory.recall", "typed")
    assert (caught.value.field, caught.value.hint, caught.value.detail) == ("date", "write 2026-11-30", {"day": 31})
    with pytest.raises(Internal) as internal:
        await kernel.call("memory.recall", "other")
    assert "secret path" not in str(internal.value)


async def test_a_method_that_nobody_serves_is_not_found(make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    await make_peer("memory")
    with pytest.raises(NotFound):
        await kernel.call("memory.recall")


@pytest.mark.parametrize(
    ("name", "tier", "method"),
    [
        ("memory", "", "provider.chat"),
        ("operator-1", "", "memory.append"),
        ("rogue", "external", "hub.publish"),
        ("rogue", "external", "hub.mint_token"),
        ("rogue", "builtin", "hub.mint_token"),
        ("rogue", "builtin", "kernel.config_set"),
        ("rogue", "builtin", "webui.tool"),
        ("provider", "", "kernel.no_such_method"),
    ],
)
async def test_what_the_table_does_not_list_is_denied(make_peer: MakePeer, name: str, tier: str, method: str) -> None:
    peer = await make_peer(name, tier)
    with pytest.raises(Denied):
        await peer.call(method, timeout_s=2)


async def test_deadlines_travel_and_the_callee_is_cancelled(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    was_cancelled = asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        left = call.deadline - asyncio.get_running_loop().time()
        assert left <= 0.3
        try:
            await asyncio.sleep(30)
        finally:
            was_cancelled.set()

    memory.serve("memory.recall", hang)
    with pytest.raises(TimedOut):
        await kernel.call("memory.recall", timeout_s=0.3)
    await asyncio.wait_for(was_cancelled.wait(), 2)


async def test_a_cancelled_caller_cancels_the_callee(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    started, was_cancelled = asyncio.Event(), asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        started.set()
        try:
            await asyncio.sleep(30)
        finally:
            was_cancelled.set()

    memory.serve("memory.recall", hang)
    task = asyncio.create_task(kernel.call("memory.recall"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(was_cancelled.wait(), 2)


async def test_a_stream_arrives_in_order_and_a_slow_reader_slows_the_writer(make_peer: MakePeer) -> None:
    kernel, provider = await make_peer("kernel"), await make_peer("provider")
    produced = 0

    async def count(body: Any, call: CallContext) -> AsyncIterator[int]:
        nonlocal produced
        for number in range(body):
            produced += 1
            yield number

    provider.serve_stream("provider.chat", count)
    received = []
    async for number in kernel.stream("provider.chat", 500, window=16):
        if not received:
            await asyncio.sleep(0.1)
            assert produced <= 18
        received.append(number)
    assert received == list(range(500))


async def test_leaving_a_stream_cancels_its_writer(make_peer: MakePeer) -> None:
    kernel, provider = await make_peer("kernel"), await make_peer("provider")
    was_closed = asyncio.Event()

    async def forever(body: Any, call: CallContext) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            was_closed.set()

    provider.serve_stream("provider.chat", forever)
    async with kernel.stream("provider.chat") as items:
        async for _ in items:
            break
    await asyncio.wait_for(was_closed.wait(), 2)


async def test_a_stream_ends_with_the_typed_error_of_its_writer(make_peer: MakePeer) -> None:
    kernel, provider = await make_peer("kernel"), await make_peer("provider")

    async def fail(body: Any, call: CallContext) -> AsyncIterator[int]:
        yield 1
        raise Unavailable("all sources failed", hint="set a key")

    provider.serve_stream("provider.chat", fail)
    received = []
    with pytest.raises(Unavailable, match="all sources failed"):
        async for number in kernel.stream("provider.chat"):
            received.append(number)  # noqa: PERF401 - what came before the error is the point
    assert received == [1]


async def test_call_and_stream_are_told_apart(make_peer: MakePeer) -> None:
    kernel, provider = await make_peer("kernel"), await make_peer("provider")

    async def one(body: Any, call: CallContext) -> AsyncIterator[int]:
        yield 1

    provider.serve_stream("provider.chat", one)
    provider.serve("provider.sources", echo)
    with pytest.raises(Invalid):
        await kernel.call("provider.chat")
    with pytest.raises(Invalid):
        async for _ in kernel.stream("provider.sources"):
            pass


async def test_a_call_waits_for_a_restarting_service_and_fails_when_it_does_not_come(make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    waiting = asyncio.create_task(kernel.call("memory.stats", timeout_s=5))
    late = asyncio.create_task(kernel.call("provider.sources", timeout_s=0.3))
    with pytest.raises(Unavailable):
        await late
    await make_peer("memory", serve={"memory.stats": echo})
    assert (await waiting)["origin"] == ["kernel", "kernel"]


async def test_the_death_of_a_callee_ends_its_calls_at_once(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    started = asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        started.set()
        await asyncio.sleep(30)

    memory.serve("memory.stats", hang)
    call = asyncio.create_task(kernel.call("memory.stats"))
    await started.wait()
    await memory.stop()
    with pytest.raises((Unavailable, Cancelled)):
        await asyncio.wait_for(call, 2)


async def test_an_idempotent_call_is_repeated_when_its_callee_dies(make_peer: MakePeer) -> None:
    kernel, memory = await make_peer("kernel"), await make_peer("memory")
    started = asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        started.set()
        await asyncio.sleep(30)

    memory.serve("memory.append", hang)
    call = asyncio.create_task(kernel.call("memory.append", 1, idempotent=True, timeout_s=10))
    await started.wait()
    await die(memory)
    await make_peer("memory", serve={"memory.append": echo})
    assert (await asyncio.wait_for(call, 5))["body"] == 1


async def test_a_newer_connection_of_a_service_replaces_the_older(make_peer: MakePeer) -> None:
    kernel = await make_peer("kernel")
    old = await make_peer("memory")
    await make_peer("memory", serve={"memory.stats": echo})
    assert (await kernel.call("memory.stats", timeout_s=2))["origin"][0] == "kernel"
    with pytest.raises(Conflict, match="another process"):
        await old.call("hub.peers", timeout_s=2)
    assert (await kernel.call("memory.stats", timeout_s=2))["origin"][0] == "kernel"


async def test_a_wrong_key_is_refused_in_words(make_peer: MakePeer, tmp_path: Any) -> None:
    from homeagent_sdk.bus import KeyCredential, Peer

    await make_peer("kernel")
    impostor = Peer(tmp_path, KeyCredential("memory", "y" * 40))
    with pytest.raises(Denied, match="could not prove"):
        await impostor.start(2)


async def test_a_token_admits_once_and_only_its_generation(make_peer: MakePeer, hub: Any, tmp_path: Any) -> None:
    from homeagent_sdk.bus import Peer
    from tests.kernel.bus.conftest import OneToken

    token = hub._admission.mint("echo", 3, "builtin")
    first = Peer(tmp_path, OneToken("echo", token, 3))
    await first.start(2)
    again = Peer(tmp_path, OneToken("echo", token, 3))
    with pytest.raises(Denied):
        await again.start(1)
    await first.stop()


async def test_the_kernels_own_events_reach_subscribers_in_order_without_messages(
    make_peer: MakePeer, hub: Any, tmp_path: Any
) -> None:
    from homeagent_sdk.bus import Event
    from kernel.bus import KernelPeer

    kernel = KernelPeer(hub, tmp_path)
    await kernel.start(5)
    memory = await make_peer("memory")
    seen: list[int] = []
    is_complete = asyncio.Event()

    async def take(event: Event) -> None:
        seen.append(event.payload["number"])
        if len(seen) == 100:
            is_complete.set()

    await memory.subscribe(["turn.*"], take)
    for number in range(100):
        await kernel.publish("turn.started", {"number": number})
    await asyncio.wait_for(is_complete.wait(), 5)
    assert seen == list(range(100))
    with pytest.raises(Invalid):
        await kernel.publish("turn.started", {"text": "x" * 70_000})
    await kernel.stop()
