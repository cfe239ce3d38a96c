"""Its tool kills the process."""

import os
import sys

from homeagent_sdk.plugin import Plugin

plugin = Plugin()


@plugin.tool()
async def crash(code: int = 7) -> None:
    """End the process.

    :param code: the exit code
    """
    sys.stderr.write("the rogue says goodbye\n")
    sys.stderr.flush()
    os._exit(code)


@plugin.tool()
async def where() -> int:
    """Return the pid."""
    return os.getpid()
