"""``homeagent key``: keys by which people and programs log in."""

from __future__ import annotations

from typing import Annotated

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.output import tell, write, write_json
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

PrincipalArgument = Annotated[str, typer.Argument(help=text("command.argument_principal"))]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_key"), no_args_is_help=True)
    group.command("new", help=text("command.help_key_new"))(_new)
    app.add_typer(group, name="key")


def _new(principal: PrincipalArgument = "owner", data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _make(data_dir(data_dir_), principal, as_json))


async def _make(data: DataDir, principal: str, as_json: bool) -> None:
    async with operator(data) as peer:
        key = (await peer.call("kernel.key_new", {"principal": principal}))["key"]
    if as_json:
        write_json({"principal": principal, "key": key})
        return
    write(key)
    tell(text("command.key_shown_once"))
