#!/usr/bin/env python3
"""What a turn costs, with a source that answers at once: ``benchmarks/turns.py [--turns 200] [--json]``.

Starts a whole HomeAgent in a temporary directory and the scripted far end as another process, talks through
``/v1/chat/completions``, and prints latency, throughput, CPU and memory. Everything is measured from outside.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from homeagent_sdk.bus import Credential, Peer  # noqa: E402
from homeagent_sdk.paths import DataDir  # noqa: E402
from tests.home import API_KEY, Home  # noqa: E402

_TICKS = os.sysconf("SC_CLK_TCK")
_local = threading.local()


def say(home: Home, text: str, conversation: str) -> float:
    """Ask once over a kept-alive connection and return the milliseconds until the whole answer was there."""
    connection = getattr(_local, "connection", None)
    if connection is None:
        connection = _local.connection = http.client.HTTPConnection("127.0.0.1", home.port, timeout=60)
    body = {
        "model": "homeagent",
        "messages": [{"role": "user", "content": text}],
        "metadata": {"conversation": conversation},
    }
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read()
    took_ms = (time.perf_counter() - began) * 1000
    if response.status != 200:
        raise RuntimeError(f"{response.status} {answer[:300]!r}")
    return took_ms


def cpu_seconds(pids: dict[int, int]) -> float:
    """Return the CPU time that processes have used so far."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def pss_mb(pid: int) -> float:
    """Return the proportional set size of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def hub_lag(home: Home, seconds: float) -> dict[str, Any]:
    """Ask the hub how late its loop is for some seconds."""
    data_dir = DataDir(home.data_dir)
    peer = Peer(data_dir.run, Credential.from_key_file("operator-benchmark", data_dir.key_file("operator")))
    await peer.start()
    try:
        answer: dict[str, Any] = await peer.call("hub.lag", {"seconds": seconds}, timeout_s=seconds + 10)
        return answer
    finally:
        await peer.stop()


def lag_during_a_long_prompt(home: Home) -> dict[str, Any]:
    """Measure the hub's lag while turns with prompts of about 50,000 tokens run."""
    words = "the quick brown fox jumps over the lazy dog while it rains in spring "
    prompt = words * (50_000 * 4 // len(words))
    done = threading.Event()

    def talk() -> None:
        while not done.is_set():
            say(home, prompt, "long")

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        return asyncio.run(hub_lag(home, 3.0))
    finally:
        done.set()
        thread.join()


def machine_loop_ms() -> float:
    """Return how long one core takes for a fixed loop: shared machines differ from hour to hour, ours fourfold."""
    samples = []
    for _ in range(5):
        began, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number
        samples.append((time.perf_counter() - began) * 1000)
    return min(samples)


def measure(turns: int) -> dict[str, Any]:
    """Run everything and return the figures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.openai_server", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as far_end,
    ):
        assert far_end.stdout is not None
        llm_url = far_end.stdout.readline().strip()
        home = Home(Path(folder), llm_url, HOMEAGENT_LLM_CONTEXT_WINDOW="200000")
        try:
            with home:
                say(home, "warm the disk cache", "start")
            home.process = None
            _local.connection = None
            return _measure(home, turns)
        finally:
            far_end.terminate()


def _measure(home: Home, turns: int) -> dict[str, Any]:
    began = time.perf_counter()
    with home:
        say(home, "hi", "first")
        first_answer_s = time.perf_counter() - began
        say(home, "你好，今天天气怎么样？", "first")
        warm = [say(home, f"warm-up {number}", "first") for number in range(20)]
        pss = {row["name"]: round(pss_mb(row["pid"]), 1) for row in home.ps().values() if row["pid"]}
        everything = home.processes()
        total_pss = sum(pss_mb(pid) for pid in everything)
        one = [say(home, f"turn {number} about the garden and the weather", "one") for number in range(turns)]
        cpu_before, load_began = cpu_seconds(everything), time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: say(home, f"load {n}", f"load-{n % 8}"), range(turns)))
        load_s = time.perf_counter() - load_began
        cpu_s = cpu_seconds(everything) - cpu_before
        lag = lag_during_a_long_prompt(home)
        time.sleep(3)
        idle_before = cpu_seconds(everything)
        time.sleep(10)
        idle = (cpu_seconds(everything) - idle_before) / 10
    fifth = max(1, turns // 4)
    first_p50, last_p50 = statistics.median(one[:fifth]), statistics.median(one[-fifth:])
    return {
        "turns": turns,
        "machine_loop_ms": round(machine_loop_ms(), 1),
        "start_to_first_answer_s": round(first_answer_s, 2),
        "p50_ms": round(statistics.median(one), 2),
        "p95_ms": round(sorted(one)[int(len(one) * 0.95)], 2),
        "warm_up_p50_ms": round(statistics.median(warm), 2),
        "growth_percent": round((last_p50 / first_p50 - 1) * 100, 1),
        "turns_per_s_8_conversations": round(turns / load_s, 1),
        "cpu_s_per_turn_under_load": round(cpu_s / turns, 4),
        "pss_mb": pss,
        "pss_mb_total": round(total_pss, 1),
        "idle_percent_of_a_core": round(idle * 100, 2),
        "hub_lag_with_50k_tokens": lag,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.turns)
    if arguments.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
