"""A tool, a stage that only watches, and a setting; each function shows one part of the plugin API."""

from __future__ import annotations

from dataclasses import dataclass

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin import Plugin, StageCall, ToolContext

plugin = Plugin()


@dataclass
class Seen:
    """What the plugin has watched since it was started: how often its own tools were to be called."""

    calls: int = 0


seen = Seen()


@plugin.tool(idempotent=True, parallel_safe=True)
async def echo(text: str, times: int = 1) -> str:
    """Return the text unchanged, or several times over.

    :param text: what to repeat
    :param times: how often, one after the other
    """
    limit = plugin.settings["max_times"]
    if not 1 <= times <= limit:
        raise Invalid(f"times is {times}", field="times", hint=f"give 1 to {limit}")
    return " ".join([text] * times)


@plugin.tool(idempotent=True, parallel_safe=True)
def echo_seen(context: ToolContext) -> dict[str, object]:
    """Tell how many calls of its own tools this plugin has watched, and where this one came from."""
    return {"seen": seen, "channel": context.channel}


@plugin.stage("before_toolcall", scope="own_tools")
async def watch(call: StageCall) -> None:
    """Count a call: without ``changes`` a handler only watches, and with this scope it gets its own plugin's calls."""
    seen.calls += 1


@plugin.on_start
async def start() -> None:
    """Say what is configured, once the settings are there."""
    plugin.log.info("echo is ready", max_times=plugin.settings["max_times"])
