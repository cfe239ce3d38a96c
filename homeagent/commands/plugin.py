"""``homeagent plugin``: the plugins, each a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.output import tell, write_json, write_table
from homeagent_sdk.catalogue import language, text
from homeagent_sdk.paths import DataDir

NameArgument = Annotated[str, typer.Argument(help=text("command.argument_plugin"))]
OptionalNameArgument = Annotated[str | None, typer.Argument(help=text("command.argument_plugin_or_all"))]

_TAKES_S = 60.0


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_plugin"), no_args_is_help=True)
    group.command("list", help=text("command.help_plugin_list"))(_list)
    group.command("reload", help=text("command.help_plugin_reload"))(_reload)
    for verb in ("restart", "enable", "disable"):
        group.command(verb, help=text(f"command.help_plugin_{verb}"))(_on_one_plugin(verb))
    app.add_typer(group, name="plugin")


def _list(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show_all(data_dir(data_dir_), as_json))


def _reload(name: OptionalNameArgument = None, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _change(data_dir(data_dir_), "reload", name, as_json))


def _on_one_plugin(verb: str) -> Callable[..., None]:
    """Return the command that does ``verb`` to one plugin."""

    def command(name: NameArgument, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
        run(lambda: _change(data_dir(data_dir_), verb, name, as_json))

    return command


async def _show_all(data: DataDir, as_json: bool) -> None:
    async with operator(data) as peer:
        plugins: list[dict[str, Any]] = (await peer.call("host.plugins", {}))["plugins"]
    if as_json:
        write_json(plugins)
        return
    for plugin in plugins:
        described = plugin.get("description") or {}
        plugin["about"] = plugin.get("reason") or described.get(language()) or described.get("en") or ""
    write_table(plugins, ("name", "version", "tier", "state", "restarts", "about"))


async def _change(data: DataDir, verb: str, name: str | None, as_json: bool) -> None:
    async with operator(data) as peer:
        changed = (await peer.call(f"host.{verb}", {"name": name}, timeout_s=_TAKES_S))["plugins"]
    if as_json:
        write_json(changed)
    elif changed:
        tell(text(f"command.plugin_{verb}_done", names=", ".join(changed)))
    else:
        tell(text("command.plugin_unchanged"))
