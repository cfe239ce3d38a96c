"""``homeagent memory verify``: whether everything that is stored is whole, and found again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.exit_codes import FAILED, OK
from homeagent.output import tell, write_json, write_table
from homeagent.verification import verified
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

RepairOption = Annotated[bool, typer.Option("--repair", help=text("command.option_repair"))]

_VERIFY_S = 3_600.0


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("verify", help=text("command.help_memory_verify"))(_verify)


def _verify(repair: RepairOption = False, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show(data_dir(data_dir_), repair, as_json))


async def _show(data: DataDir, repair: bool, as_json: bool) -> int:
    async with operator(data) as peer:
        if repair:
            repaired = (await peer.call("memory.repair", {}, timeout_s=_VERIFY_S))["repaired"]
            for check, count in repaired.items():
                tell(text("command.memory_repaired", check=check, count=count))
        report = await verified(peer, _VERIFY_S)
    if as_json:
        write_json(report)
    else:
        write_table([_row(check) for check in report["checks"]], ("state", "name", "count", "examples"))
        tell(text("command.memory_verified" if report["ok"] else "command.memory_not_verified"))
    return OK if report["ok"] else FAILED


def _row(check: dict[str, Any]) -> dict[str, Any]:
    return {**check, "state": "ok" if check["ok"] else "fail", "examples": check["examples"] or ""}
