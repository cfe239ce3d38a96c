"""What a message over the bus costs: round trips, streams and events, between real processes.

Two processes take part besides this one, which runs the hub in its thread as the kernel does: a service that answers,
and an operator that asks. ``kernel`` is the way of a turn (kernel, hub, service), ``peer`` the way between two other
processes (peer, hub, peer). ``cpu_us`` is the processor time of the asking process for one call, which for ``kernel``
contains the hub's; unlike the rest it hardly depends on what else the machine does.

Run ``python benchmarks/bus.py`` for a table, with ``--json`` for programs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from homeagent_sdk.bus import CallContext, Event, KeyCredential, Peer
from homeagent_sdk.process import lower_switch_interval
from kernel.bus import Hub

KEYS = {name: name.ljust(40, "x") for name in ("memory", "provider", "host", "operator")}
SIZES = {"200B": 200, "4KiB": 4096, "1MiB": 1024 * 1024}
Numbers = dict[str, float]


async def _echo(body: Any, call: CallContext) -> Any:
    return body


async def _serve(run_dir: Path) -> None:
    """Answer calls and streams and publish events until standard input is closed."""
    memory = Peer(run_dir, KeyCredential("memory", KEYS["memory"]))
    provider = Peer(run_dir, KeyCredential("provider", KEYS["provider"]))

    async def stream(body: Any, call: CallContext) -> AsyncIterator[Any]:
        for number in range(body["items"]):
            yield {"type": "delta", "text": f"word {number}"}

    async def publish(body: Any, call: CallContext) -> None:
        for number in range(body["events"]):
            await memory.publish("bench.event", {"number": number, "text": "x" * 150})
            if number % 100 == 99:
                await asyncio.sleep(0)

    memory.serve("memory.stats", _echo)
    memory.serve("memory.health", publish)
    provider.serve_stream("provider.chat", stream)
    await memory.start()
    await provider.start()
    await asyncio.to_thread(sys.stdin.read)
    await memory.stop()
    await provider.stop()


async def _round_trips(peer: Peer, size: int, seconds: float) -> Numbers:
    """Call with one request under way at a time; microseconds."""
    body = {"data": os.urandom(size)}
    for _ in range(20):
        await peer.call("memory.stats", body)
    samples: list[float] = []
    cpu, end = time.process_time(), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await peer.call("memory.stats", body)
        samples.append((time.perf_counter() - start) * 1e6)
    samples.sort()
    return {
        "p50_us": round(samples[len(samples) // 2], 1),
        "p99_us": round(samples[int(len(samples) * 0.99)], 1),
        "cpu_us": round((time.process_time() - cpu) / len(samples) * 1e6, 1),
        "calls": len(samples),
    }


async def _pipelined(peer: Peer, seconds: float) -> float:
    """Return round trips a second of 200 bytes with 64 under way."""
    body, count, end = {"data": b"x" * 200}, 0, time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal count
        while time.perf_counter() < end:
            await peer.call("memory.stats", body)
            count += 1

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(64)))
    return round(count / (time.perf_counter() - start))


async def _stream_rate(peer: Peer, items: int) -> float:
    start, count = time.perf_counter(), 0
    async for _ in peer.stream("provider.chat", {"items": items}):
        count += 1
    return round(count / (time.perf_counter() - start))


async def _event_rate(peer: Peer, events: int) -> float:
    """Return events a second from publisher over hub to handler, every one delivered."""
    done = asyncio.Event()
    received = 0

    async def take(event: Event) -> None:
        nonlocal received
        received += 1
        if received == events:
            done.set()

    subscription = await peer.subscribe(["bench.event"], take)
    start = time.perf_counter()
    await peer.call("memory.health", {"events": events})
    await asyncio.wait_for(done.wait(), 60)
    seconds = time.perf_counter() - start
    await subscription.cancel()
    return round(events / seconds)


async def _measure(peer: Peer, seconds: float) -> dict[str, Any]:
    gc.freeze()
    result: dict[str, Any] = {
        f"round_trip_{name}": await _round_trips(peer, size, seconds) for name, size in SIZES.items()
    }
    result["round_trips_per_s_64_under_way"] = await _pipelined(peer, seconds)
    return result


async def _ask(run_dir: Path, seconds: float) -> None:
    """Measure from a process of its own and print the result as JSON."""
    peer = Peer(run_dir, KeyCredential("operator-bench", KEYS["operator"]))
    await peer.start()
    result = await _measure(peer, seconds)
    result["events_per_s"] = await _event_rate(peer, int(10_000 * seconds))
    await peer.stop()
    print(json.dumps(result))


async def _run(seconds: float) -> dict[str, Any]:
    lower_switch_interval()
    with tempfile.TemporaryDirectory(prefix="bus-") as name:
        run_dir = Path(name)
        hub = Hub(run_dir, KEYS)
        hub.start()
        command = [sys.executable, __file__, "--run-dir", name, "--seconds", str(seconds), "--role"]
        server = await asyncio.create_subprocess_exec(*command, "serve", stdin=subprocess.PIPE)
        kernel = Peer(run_dir, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
        try:
            await kernel.start()
            await kernel.call("memory.stats", timeout_s=10)
            result: dict[str, Any] = {"kernel": await _measure(kernel, seconds)}
            result["kernel"]["stream_items_per_s"] = await _stream_rate(kernel, int(20_000 * seconds))
            asker = await asyncio.create_subprocess_exec(*command, "ask", stdout=subprocess.PIPE)
            output, _ = await asker.communicate()
            result["peer"] = json.loads(output)
        finally:
            assert server.stdin is not None
            server.stdin.close()
            await server.wait()
            await kernel.stop()
            await asyncio.to_thread(hub.stop)
    return result


def _print_table(result: dict[str, Any]) -> None:
    for who, numbers in result.items():
        for what, value in numbers.items():
            text = " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else f"{value:g}"
            print(f"{who:7} {what:32} {text}")


def main() -> None:
    """Run the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes")
    parser.add_argument("--role", choices=["serve", "ask"], help=argparse.SUPPRESS)
    parser.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    roles: dict[str, Callable[[], Awaitable[None]]] = {
        "serve": lambda: _serve(options.run_dir),
        "ask": lambda: _ask(options.run_dir, options.seconds),
    }
    if options.role:
        asyncio.run(roles[options.role]())  # type: ignore[arg-type]
        return
    result = asyncio.run(_run(options.seconds))
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        _print_table(result)


if __name__ == "__main__":
    main()
