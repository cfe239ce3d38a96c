"""``homeagent doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.doctor import FAIL, WARN, Check, examine
from homeagent.exit_codes import FAILED, OK
from homeagent.output import console, write_json
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help=text("command.help_doctor"))(_doctor)


def _doctor(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show(data_dir(data_dir_), as_json))


async def _show(data: DataDir, as_json: bool) -> int:
    checks = await examine(data)
    if as_json:
        write_json([asdict(check) for check in checks])
    else:
        _write(checks)
    return FAILED if any(check.state == FAIL for check in checks) else OK


def _write(checks: list[Check]) -> None:
    from rich.text import Text

    screen = console()
    for check in checks:
        state = Text(f"{check.state:<5}", style=_STYLES[check.state])
        screen.print(state, Text(f"{check.name}: {check.message}"), soft_wrap=True)
        if check.todo:
            screen.print(Text(f"      → {check.todo}"), soft_wrap=True)
    failed = sum(check.state == FAIL for check in checks)
    warned = sum(check.state == WARN for check in checks)
    screen.print(text("command.doctor_summary", failed=failed, warned=warned, total=len(checks)), soft_wrap=True)
