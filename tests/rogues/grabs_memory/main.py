"""Takes memory until there is none; the limit of its process is its own trouble."""

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.tool()
def grab(gigabytes: int) -> int:
    """Take memory.

    :param gigabytes: how much
    """
    return len(bytearray(gigabytes * 1024**3))
