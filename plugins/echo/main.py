"""A tool, a stage that only watches, and a setting; each function shows one part of the plugin API."""

from __future__ import annotations

from dataclasses import dataclass

from homeagent_sdk.errors import Invalid
from homeagent_sdk.plugin import Plugin, StageCall, ToolContext

plugin = Plugin()


@dataclass
class Seen:
    """What the plugin has watched since it was started."""

    outputs: int = 0
    characters: int = 0


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
    """Tell how many answers, and how many characters of them, this plugin has watched, and where the call came from."""
    return {"seen": seen, "channel": context.channel}


@plugin.stage("after_output")
async def watch(call: StageCall) -> None:
    """Count an answer; a handler without ``changes`` only watches, so it cannot hold anybody up."""
    seen.outputs += 1
    seen.characters += len(str(call.fields.get("final_text") or ""))


@plugin.on_start
async def start() -> None:
    """Say what is configured, once the settings are there."""
    plugin.log.info("echo is ready", max_times=plugin.settings["max_times"])
