"""The kernel's own tools: catalogue of tools, personality, list of channels, and sending over a channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from homeagent_sdk.errors import Denied, HomeAgentError, Invalid, NotFound, Overloaded, Unavailable
from kernel.channels import ChannelRegistry, channel_of_tool
from kernel.tools import GET_PLUGIN_TOOLS, ArgumentsRefused, parse_arguments
from kernel.turns.environment import TurnRun
from kernel.turns.frame import ToolCall
from kernel.turns.persona_tool import PERSONA_SET, persona_set

LIST_CHANNELS: Final = {
    "name": "output_list_channels",
    "description": "List the channels over which a message can be sent to somebody elsewhere.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "flags": {"parallel_safe": True, "idempotent": True, "no_memory": True, "always": True},
}
_SEND_TIMEOUT_S: Final = 30.0
_SURELY_NOT_SENT: Final = (Denied, Invalid, NotFound, Overloaded)
"""Errors of a plugin, or of the bus, that come before anything is sent; after others nobody knows."""


def definitions(channels: ChannelRegistry) -> list[dict[str, Any]]:
    """Return the kernel's tools as the registry takes them; those for sending are there while there are channels."""
    sending = channels.tools()
    return [*([LIST_CHANNELS, *sending] if sending else []), PERSONA_SET]


async def run(turn: TurnRun, call: ToolCall, arguments: Mapping[str, Any]) -> Any:
    """Run one of the kernel's tools.

    :raises HomeAgentError: it failed; the message is written for the model
    """
    environment = turn.environment
    if call.name == GET_PLUGIN_TOOLS.name:
        return _fetch(turn, str(arguments["plugin_name"]).strip())
    if call.name == PERSONA_SET["name"]:
        return await persona_set(turn, arguments)
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


def _fetch(turn: TurnRun, plugin: str) -> list[dict[str, Any]]:
    """Return the tools of a plugin, which are offered from now on."""
    environment = turn.environment
    if plugin in environment.absent_tools.values():
        raise Unavailable(f"{plugin} is unavailable, restarting", hint="go on without it, or try again in a while")
    schemas = environment.tools.describe(plugin)
    if plugin not in turn.frame.fetched:
        turn.frame.fetched.append(plugin)
    return schemas


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
        if is_surely_not_sent(error):
            raise
        return f"not confirmed: {error.message}; it may have been sent"
    status, note = read_receipt(receipt)
    call.is_error = status == "failed"
    words = {"ok": "ok", "failed": "failed"}.get(status, "not confirmed")
    return f"{words}: {note}" if note and status != "ok" else words


def is_surely_not_sent(error: HomeAgentError) -> bool:
    """Tell whether an output that ended with an error cannot have left."""
    if isinstance(error, Unavailable):
        return not error.detail.get("sent")
    return isinstance(error, _SURELY_NOT_SENT)


def read_receipt(receipt: Any) -> tuple[str, str]:
    """Return status and note of what a channel answered; an answer that is no receipt confirms nothing."""
    if not isinstance(receipt, dict) or receipt.get("status") not in ("ok", "unconfirmed", "failed"):
        return "unconfirmed", "the channel did not answer with a receipt"
    return receipt["status"], str(receipt.get("note") or "")


def _meta(text: Any) -> dict[str, Any]:
    if not text:
        return {}
    try:
        return parse_arguments(str(text))
    except ArgumentsRefused as error:
        hint = "leave it out, or write a JSON object"
        raise Invalid(f"meta is no JSON object: {error.message}", field="meta", hint=hint) from error
