"""Raises in on_start."""

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.on_start
async def start() -> None:
    """Fail."""
    raise OSError("the port is in use")
