"""Hands ``personal.md`` of the data directory to the kernel at a start: where it has changed, it wins."""

from __future__ import annotations

import asyncio

from homeagent.launcher.announcer import Call
from homeagent.persona_file import PERSONAL_FILE, read_persona
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir


async def import_personal_file(call: Call, data: DataDir) -> str | None:
    """Import the file, and return what to say about it; the kernel knows whether it is still as it was.

    A file that cannot be used is only a remark: the personality that was in force stays.
    """
    path = data.root / PERSONAL_FILE
    try:
        content = await asyncio.to_thread(read_persona, path)
        reply = await call("kernel.persona_set", {"content": content, "origin": PERSONAL_FILE})
    except FileNotFoundError:
        return None
    except (HomeAgentError, OSError) as error:
        return text("command.warning", message=text("command.persona_not_imported", path=path, reason=error))
    if not reply["changed"]:
        return None
    return text("command.persona_imported", path=path, tokens=reply["tokens"])
