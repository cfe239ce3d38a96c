"""``homeagent up`` for the full command line; the usual call takes the short way in :mod:`homeagent.command`."""

from __future__ import annotations

from typing import Annotated

import typer

from homeagent.commands._shared import DataDirOption
from homeagent.launcher.options import Options, default_data_dir
from homeagent_sdk.catalogue import text

PortOption = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help=text("command.option_port"), show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=text("command.option_set"), show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up", help=text("command.help_up"))(_up)


def _up(data_dir: DataDirOption = None, port: PortOption = None, overrides: SetOption = None) -> None:
    for override in overrides or []:
        if "=" not in override:
            raise typer.BadParameter(text("command.set_without_value", given=override))
    from homeagent.launcher.launcher import up

    raise typer.Exit(up(Options(data_dir or default_data_dir(), port, tuple(overrides or ()))))
