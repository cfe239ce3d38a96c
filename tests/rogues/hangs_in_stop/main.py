"""Never ends its on_stop, and ignores SIGTERM while at it."""

import time

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.on_stop
async def stop() -> None:
    """Block the loop for good."""
    while True:
        time.sleep(3600)  # noqa: ASYNC251
