"""Finds out over the bus when the system is up, and tells the person how to use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from homeagent.launcher.progress import Progress
from homeagent.overview import SERVICES, Overview
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method of the bus as the operator."""

PATIENCE_S = 20.0
"""How long a plugin may keep the others from being announced."""

_FAST_S = 0.03
_SLOW_S = 0.25
_FAST_FOR_S = 10.0


async def wait_until_up(call: Call, progress: Progress, patience_s: float = PATIENCE_S) -> Overview:
    """Wait until every service and plugin is up, and return how things stand.

    A plugin that does not come up is waited for no longer than ``patience_s`` seconds, then named with its reason.
    Services and the web interface are waited for without end: without them there is nothing to announce.
    """
    began = time.monotonic()
    told: set[str] = set()
    while True:
        age = time.monotonic() - began
        try:
            overview = Overview.from_status(await call("kernel.status", {}))
        except HomeAgentError:
            progress.waiting_for(SERVICES)
        else:
            if overview.is_complete:
                return overview
            if age >= patience_s or any(part.state in ("failed", "stopped") for part in overview.waiting_for):
                _name_what_fails(overview, progress, told, age >= patience_s)
            if age >= patience_s and overview.serves:
                return overview
            progress.waiting_for([part.name for part in overview.waiting_for])
        await asyncio.sleep(_FAST_S if age < _FAST_FOR_S else _SLOW_S)


def _name_what_fails(overview: Overview, progress: Progress, told: set[str], is_late: bool) -> None:
    """Say, once for each state and reason, what did not come up."""
    for part in overview.waiting_for:
        if not is_late and part.state not in ("failed", "stopped"):
            continue
        line = text("command.up_not_running", name=part.name, state=part.state, reason=part.detail or "-")
        if line not in told:
            told.add(line)
            progress.tell(line)


async def first_key(call: Call) -> str | None:
    """Return a new key for the owner if nobody has given the owner one yet, else None."""
    reply = await call("kernel.principal_list", {})
    for principal in reply["principals"]:
        if principal["principal"] == "owner" and principal["keys"]:
            return None
    made = await call("kernel.key_new", {"principal": "owner"})
    return str(made["key"])


async def model_notice(call: Call) -> str | None:
    """Return what to say about the model if no real one is configured, else None."""
    sources = (await call("provider.sources", {}))["sources"]
    if not sources:
        return text("command.no_model")
    if all(source.get("embedded") for source in sources):
        return text("command.tiny_model")
    return None


async def web_address(call: Call, port: int | None) -> str:
    """Return the address of the web interface."""
    address = (await call("kernel.config_get", {"key": "plugin.webui.addr"}))["value"]
    if port is None:
        port = (await call("kernel.config_get", {"key": "plugin.webui.port"}))["value"]
    # What listens on every address is reached by the loopback one from here.
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, f"[{address}]" if ":" in address else address)
    return f"http://{host}:{port}"
