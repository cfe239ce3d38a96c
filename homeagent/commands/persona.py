"""``homeagent persona``: the agent's personality."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.output import tell, write, write_json
from homeagent.persona_file import read_persona
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=text("command.argument_persona_file"))]
TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help=text("command.argument_persona_text"))]
PreviousOption = Annotated[bool, typer.Option("--previous", help=text("command.option_persona_previous"))]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_persona"), no_args_is_help=True)
    group.command("show", help=text("command.help_persona_show"))(_show)
    group.command("set", help=text("command.help_persona_set"))(_set)
    group.command("import", help=text("command.help_persona_import"))(_import)
    group.command("reset", help=text("command.help_persona_reset"))(_reset)
    app.add_typer(group, name="persona")


def _show(previous: PreviousOption = False, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_one(data_dir(data_dir_), previous, as_json))


def _set(words: TextArgument, data_dir_: DataDirOption = None) -> None:
    run(lambda: _change(data_dir(data_dir_), "kernel.persona_set", {"content": words, "origin": "command"}))


def _import(file: FileArgument, data_dir_: DataDirOption = None) -> None:
    run(lambda: _import_one(data_dir(data_dir_), file))


def _reset(data_dir_: DataDirOption = None) -> None:
    run(lambda: _change(data_dir(data_dir_), "kernel.persona_reset", {}))


async def _show_one(data: DataDir, previous: bool, as_json: bool) -> None:
    async with operator(data) as peer:
        persona: dict[str, Any] = await peer.call("kernel.persona_get", {"previous": previous})
    if as_json:
        write_json(persona)
        return
    write(persona["content"])
    tell(_origin(persona))
    tell(text("command.persona_cost", tokens=persona["tokens"]))


async def _import_one(data: DataDir, file: Path) -> None:
    content = await asyncio.to_thread(read_persona, file)
    await _change(data, "kernel.persona_set", {"content": content, "origin": "file"})


async def _change(data: DataDir, method: str, body: dict[str, Any]) -> None:
    async with operator(data) as peer:
        persona = await peer.call(method, body)
    if not persona["changed"]:
        tell(text("command.persona_unchanged"))
        return
    tell(text("command.persona_changed"))
    tell(text("command.persona_cost", tokens=persona["tokens"]))


def _origin(persona: dict[str, Any]) -> str:
    """Return who set it, and when."""
    origin = text(f"command.persona_from_{persona['origin'].replace('.', '_')}")
    if persona["changed_at"] is None:
        return origin
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(persona["changed_at"]))
    return text("command.persona_since", origin=origin, when=when)
