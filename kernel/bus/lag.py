"""How late a loop runs what is due."""

from __future__ import annotations

import asyncio
from typing import Any

_INTERVAL_S = 0.002


async def measure_lag(seconds: float) -> dict[str, Any]:
    """Sample the lag of the running loop for some seconds; milliseconds by which a 2 ms timer came late."""
    loop = asyncio.get_running_loop()
    samples: list[float] = []
    end = loop.time() + seconds
    while (now := loop.time()) < end:
        await asyncio.sleep(_INTERVAL_S)
        samples.append((loop.time() - now - _INTERVAL_S) * 1000)
    samples.sort()
    return {
        "samples": len(samples),
        "p50_ms": round(samples[len(samples) // 2], 3),
        "p99_ms": round(samples[int(len(samples) * 0.99)], 3),
        "max_ms": round(samples[-1], 3),
    }
