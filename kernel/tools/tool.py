"""A tool as it is registered; all of it is checked then, not when a model calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from homeagent_sdk.errors import Invalid

KERNEL = "kernel"
"""Owner of the kernel's own tools."""
MEMORY = "memory"
"""The memory service, whose tools come and go as those of a plugin do."""
SERVICES = (KERNEL, MEMORY)
"""Owners of tools that are no plugins, and whose names no plugin may have."""
OUTPUT_PREFIX = "output_send__"
"""Begins the names of tools that the kernel makes of output channels; no plugin may use it."""

LONGEST_TIMEOUT_S = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_DESCRIPTION = 8_000
_LARGEST_SCHEMA_BYTES = 64 * 1024
_SWITCHES = ("no_memory", "parallel_safe", "serial", "idempotent", "requires_approval", "always")


@dataclass(frozen=True, slots=True)
class ToolFlags:
    """How a tool may be run.

    :ivar no_memory: what it returns stays out of the memory
    :ivar parallel_safe: it may run beside other such tools, in any order
    :ivar serial: it never runs beside others, whatever ``parallel_safe`` says
    :ivar idempotent: running it twice is as running it once, so that it may be repeated after a crash
    :ivar requires_approval: a person must agree before it runs
    :ivar always: a model is shown it in full in every request; of a service only, whose other tools must be fetched
    :ivar timeout_s: its time limit in seconds; None: that of ``core.agent.tool_timeout``
    """

    no_memory: bool = False
    parallel_safe: bool = False
    serial: bool = False
    idempotent: bool = False
    requires_approval: bool = False
    always: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that the model may call.

    :ivar plugin: whose it is; :data:`KERNEL` for the kernel's own
    :ivar generation: which start of the plugin registered it
    :ivar parameters: JSON schema of an object
    """

    name: str
    plugin: str
    description: str
    parameters: Mapping[str, Any]
    flags: ToolFlags = field(default=ToolFlags())
    generation: int = 0

    @property
    def schema(self) -> dict[str, Any]:
        """Return what a model is told of it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


def read_tool(plugin: str, generation: int, body: Any) -> Tool:
    """Read an entry of ``tools`` of ``kernel.register``.

    :raises Invalid: something is missing or wrong; the message names plugin and tool
    """
    if not isinstance(body, dict):
        raise Invalid(f"a tool of {plugin} is no object", field="tools")
    name = body.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"the plugin {plugin} registers a tool named {name!r:.100}",
            field="name",
            hint="use 1 to 64 of A-Z a-z 0-9 _ -; one bad name makes a provider refuse the whole request",
        )
    if name.startswith(OUTPUT_PREFIX) and plugin != KERNEL:
        raise Invalid(
            f"the plugin {plugin} registers the tool {name}, but names with {OUTPUT_PREFIX} belong to output channels",
            field="name",
            hint="register an output channel, or choose another name",
        )
    where = f"the tool {name} of {plugin}"
    description = body.get("description")
    if not isinstance(description, str) or not description.strip() or len(description) > _LONGEST_DESCRIPTION:
        raise Invalid(
            f"{where} needs a description of 1 to {_LONGEST_DESCRIPTION} characters",
            field="description",
            hint="say what it does and when to use it: the model reads nothing else",
        )
    return Tool(
        name=name,
        plugin=plugin,
        description=description,
        parameters=_parameters(where, body.get("parameters")),
        flags=_flags(where, plugin, body.get("flags")),
        generation=generation,
    )


def _parameters(where: str, body: Any) -> dict[str, Any]:
    if body is None:
        return {"type": "object", "properties": {}}
    properties = body.get("properties", {}) if isinstance(body, dict) else None
    if not isinstance(properties, dict) or body.get("type", "object") != "object":
        raise Invalid(f"the parameters of {where} must be a JSON schema of an object", field="parameters")
    required = body.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise Invalid(f"required of {where} must be a list of names", field="parameters.required")
    unknown = [each for each in required if each not in properties]
    if unknown:
        raise Invalid(
            f"{where} requires {', '.join(unknown)}, which its properties do not have", field="parameters.required"
        )
    if not all(isinstance(each, dict) for each in properties.values()):
        raise Invalid(f"each property of {where} must be a schema", field="parameters.properties")
    try:
        size = len(json.dumps(body, ensure_ascii=False).encode())
    except (TypeError, ValueError) as error:
        raise Invalid(f"the parameters of {where} cannot be written as JSON: {error}", field="parameters") from error
    if size > _LARGEST_SCHEMA_BYTES:
        raise Invalid(f"the schema of {where} has {size} bytes; at most {_LARGEST_SCHEMA_BYTES}", field="parameters")
    return {"type": "object", **body, "properties": properties}


def _flags(where: str, plugin: str, body: Any) -> ToolFlags:
    if body is None:
        return ToolFlags()
    if not isinstance(body, dict):
        raise Invalid(f"the flags of {where} must be an object", field="flags")
    unknown = sorted(str(each) for each in body if each not in (*_SWITCHES, "timeout_s"))
    if unknown:
        raise Invalid(f"{where} has the unknown flag {', '.join(unknown)}", field="flags")
    for switch in _SWITCHES:
        if not isinstance(body.get(switch, False), bool):
            raise Invalid(f"{switch} of {where} must be true or false", field=f"flags.{switch}")
    if body.get("always", False) and plugin not in SERVICES:
        raise Invalid(
            f"{where} asks to be shown always, which only services may",
            field="flags.always",
            hint="leave it out: tools of plugins are shown in full as far as there is room",
        )
    timeout_s = body.get("timeout_s")
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float)):
        raise Invalid(f"timeout_s of {where} must be a number of seconds", field="flags.timeout_s")
    if timeout_s is not None and not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise Invalid(
            f"{where} has a time limit of {timeout_s:g} s",
            field="flags.timeout_s",
            hint=f"choose more than 0 and at most {LONGEST_TIMEOUT_S:g} s",
        )
    switches = {switch: body.get(switch, False) for switch in _SWITCHES}
    return ToolFlags(**switches, timeout_s=None if timeout_s is None else float(timeout_s))
