"""Prints without end, from a thread."""

import sys
import threading

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


def flood() -> None:
    """Print."""
    while True:
        sys.stdout.write(("water " * 20 + "\n") * 20)
        sys.stderr.write("x" * 100_000)


@plugin.on_start
async def start() -> None:
    """Begin."""
    threading.Thread(target=flood, daemon=True).start()


@plugin.tool()
async def wet() -> str:
    """Answer in spite of it."""
    return "very"
