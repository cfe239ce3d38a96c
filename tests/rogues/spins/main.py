"""Its tool blocks the loop and burns a core."""

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.tool()
async def spin() -> None:
    """Never come back."""
    while True:
        pass
