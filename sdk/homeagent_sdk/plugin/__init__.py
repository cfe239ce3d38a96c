"""The plugin API: what ``main.py`` of a plugin imports."""

from homeagent_sdk.plugin.durations import format_duration, parse_duration
from homeagent_sdk.plugin.messages import OutputFlags, OutputMessage, Receipt, StageCall, ToolContext
from homeagent_sdk.plugin.plugin import Plugin
from homeagent_sdk.plugin.turn import Principal, Turn

__all__ = [
    "OutputFlags",
    "OutputMessage",
    "Plugin",
    "Principal",
    "Receipt",
    "StageCall",
    "ToolContext",
    "Turn",
    "format_duration",
    "parse_duration",
]
