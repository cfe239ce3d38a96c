"""``homeagent memory``: what is remembered, looked at and looked after by the operator."""

from __future__ import annotations

import typer

from homeagent.commands.memory import forgetting, importing, looking, searching, verifying
from homeagent_sdk.catalogue import text


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help=text("command.help_memory"), no_args_is_help=True)
    for part in (importing, searching, looking, verifying, forgetting):
        part.add_to(group)
    app.add_typer(group, name="memory")
