"""``homeagent down``: stops what ``homeagent up`` started."""

from __future__ import annotations

import asyncio
import os
import signal

import typer

from homeagent.client import not_running
from homeagent.commands._shared import DataDirOption, data_dir, run
from homeagent.exit_codes import FAILED
from homeagent.launcher.record import is_locked, read_record
from homeagent.output import tell
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

_STOPPED_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.05


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("down", help=text("command.help_down"))(_down)


def _down(data_dir_: DataDirOption = None) -> None:
    run(lambda: stop(data_dir(data_dir_)))


async def stop(data: DataDir) -> int | None:
    """Tell the launcher to stop, and wait until it has."""
    record = read_record(data)
    if record is None:
        raise not_running(data)
    os.kill(record.pid, signal.SIGTERM)
    loop = asyncio.get_running_loop()
    end = loop.time() + _STOPPED_WITHIN_S
    while is_locked(data):
        if loop.time() > end:
            tell(text("command.down_late", pid=record.pid))
            return FAILED
        await asyncio.sleep(_LOOK_EVERY_S)
    tell(text("command.down_done"))
    return None
