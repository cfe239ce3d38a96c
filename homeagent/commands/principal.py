"""``homeagent principal``: the people and systems that the agent knows."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.output import tell, write, write_json, write_table
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

NameArgument = Annotated[str, typer.Argument(help=text("command.argument_new_principal"))]
PrincipalArgument = Annotated[str, typer.Argument(help=text("command.argument_principal"))]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_principal"), no_args_is_help=True)
    group.command("add", help=text("command.help_principal_add"))(_add)
    group.command("list", help=text("command.help_principal_list"))(_list)
    group.command("remove", help=text("command.help_principal_remove"))(_remove)
    app.add_typer(group, name="principal")


def _add(name: NameArgument, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _add_one(data_dir(data_dir_), name, as_json))


def _list(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_all(data_dir(data_dir_), as_json))


def _remove(principal: PrincipalArgument, data_dir_: DataDirOption = None) -> None:
    run(lambda: _remove_one(data_dir(data_dir_), principal))


async def _add_one(data: DataDir, name: str, as_json: bool) -> None:
    async with operator(data) as peer:
        made = await peer.call("kernel.principal_add", {"name": name})
    if as_json:
        write_json(made)
        return
    write(made["key"])
    tell(text("command.principal_added", principal=made["principal"]))
    tell(text("command.key_shown_once"))


async def _show_all(data: DataDir, as_json: bool) -> None:
    async with operator(data) as peer:
        principals: list[dict[str, Any]] = (await peer.call("kernel.principal_list", {}))["principals"]
    if as_json:
        write_json(principals)
        return
    for row in principals:
        if isinstance(row.get("created"), int | float):
            row["created"] = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"]))
    write_table(principals, ("principal", "name", "role", "created", "keys"))


async def _remove_one(data: DataDir, principal: str) -> None:
    async with operator(data) as peer:
        await peer.call("kernel.principal_remove", {"principal": principal})
    tell(text("command.principal_removed", principal=principal))
