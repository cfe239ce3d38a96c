"""Ends by itself, politely, a moment after it was started."""

import asyncio
import os

from homeagent_sdk.plugin import Plugin

plugin = Plugin()
leaving: list[asyncio.TimerHandle] = []


@plugin.on_start
async def start() -> None:
    """Leave soon."""
    leaving.append(asyncio.get_running_loop().call_later(0.1, os._exit, 0))
