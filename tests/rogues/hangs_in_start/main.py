"""Never ends its on_start."""

import time

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.on_start
async def start() -> None:
    """Block the loop for good."""
    while True:
        time.sleep(3600)  # noqa: ASYNC251
