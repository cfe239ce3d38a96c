"""Reads a stream without losing patience: says when nothing has come for a while, without disturbing the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

Item = TypeVar("Item")


async def paced(
    items: AsyncIterator[Item], pause_s: float, first_pause_s: float | None = None
) -> AsyncGenerator[Item | None, None]:
    """Yield the items, and None whenever ``pause_s`` seconds have gone by without one.

    :param first_pause_s: the same until the first None was given
    """
    wait_s = pause_s if first_pause_s is None else first_pause_s
    coming: asyncio.Future[Item] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(items))
            await asyncio.wait({coming}, timeout=wait_s)
            if not coming.done():
                wait_s = pause_s
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            finally:
                coming = None
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
