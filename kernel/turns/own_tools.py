"""The kernel's own tools: the catalogue of tools, the list of channels, and sending over a channel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from homeagent_sdk.errors import HomeAgentError, Invalid, NotFound
from kernel.channels import ChannelRegistry, channel_of_tool
from kernel.tools import GET_PLUGIN_TOOLS
from kernel.turns.environment import TurnRun
from kernel.turns.frame import ToolCall

LIST_CHANNELS: Final = {
    "name": "output_list_channels",
    "description": "List the channels over which a message can be sent to somebody elsewhere.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "flags": {"parallel_safe": True, "idempotent": True, "no_memory": True},
}
_SEND_TIMEOUT_S: Final = 30.0


def definitions(channels: ChannelRegistry) -> list[dict[str, Any]]:
    """Return the kernel's tools as the registry takes them; those for sending are there while there are channels."""
    sending = channels.tools()
    return [LIST_CHANNELS, *sending] if sending else []


async def run(turn: TurnRun, call: ToolCall, arguments: Mapping[str, Any]) -> Any:
    """Run one of the kernel's tools.

    :raises HomeAgentError: it failed; the message is written for the model
    """
    environment = turn.environment
    if call.name == GET_PLUGIN_TOOLS.name:
        plugin = str(arguments["plugin_name"]).strip()
        schemas = environment.tools.describe(plugin)
        if plugin not in turn.frame.fetched:
            turn.frame.fetched.append(plugin)
        return schemas
    if call.name == LIST_CHANNELS["name"]:
        return [
            {"channel": each.name, "types": list(each.types), "description": each.description}
            for each in environment.channels.sendable()
        ]
    target = channel_of_tool(call.name)
    if target is None:
        raise NotFound(f"the kernel has no tool {call.name}")
    name, is_help = target
    return environment.channels.help_text(name) if is_help else await _send(turn, call, name, arguments)


async def _send(turn: TurnRun, call: ToolCall, name: str, arguments: Mapping[str, Any]) -> str:
    """Send over a channel; a success is one word, since a rich receipt made models send again (lesson 1)."""
    channel, kind = turn.environment.channels.check_type(name, str(arguments.get("type") or ""))
    result = await turn.run_stage("before_output", {"final_text": str(arguments["payload"])})
    payload = result.fields["final_text"] if result.response is None else result.response
    if not payload:
        return "not sent: a plugin emptied the message"
    body = {
        "output_id": f"{turn.frame.turn_id}-{call.call_id}",
        "channel": name,
        "payload": payload,
        "type": kind,
        "meta": _meta(arguments.get("meta")),
        "conversation": turn.frame.conversation if turn.frame.channel == name else "",
        "principal": turn.frame.principal,
    }
    try:
        receipt = await turn.environment.bus.call(f"{channel.plugin}.output", body, timeout_s=_SEND_TIMEOUT_S)
    except HomeAgentError as error:
        if error.detail.get("sent") or error.code == "timeout":
            return f"not confirmed: {error.message}; it may have been sent"
        raise
    note = str(receipt.get("note") or "")
    match receipt.get("status"):
        case "ok":
            return "ok"
        case "unconfirmed":
            return f"not confirmed: {note}" if note else "not confirmed"
        case _:
            call.is_error = True
            return f"failed: {note}" if note else "failed"


def _meta(text: Any) -> dict[str, Any]:
    if not text:
        return {}
    try:
        meta = json.loads(text) if isinstance(text, str) else text
    except ValueError as error:
        raise Invalid("meta is no JSON object", field="meta", hint="leave it out, or write a JSON object") from error
    if not isinstance(meta, dict):
        raise Invalid("meta is no JSON object", field="meta", hint="leave it out, or write a JSON object")
    return meta
