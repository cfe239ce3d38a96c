"""The ``homeagent`` command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Run the command line and leave the program with its exit code.

    ``homeagent up`` in its usual form does without the command line library: the launcher stays in memory for as long
    as the system runs, and is the first to start.
    """
    if sys.argv[1:2] == ["up"]:
        from homeagent.launcher.options import parse

        options = parse(sys.argv[2:])
        if options is not None:
            from homeagent.launcher.launcher import up

            sys.exit(up(options))
    build_app()()


def build_app() -> typer.Typer:
    """Return the whole command line, in the language of this process."""
    import typer
    from typer import rich_utils

    from homeagent.commands import (
        backup,
        chat,
        config,
        doctor,
        down,
        key,
        logs,
        memory,
        persona,
        plugin,
        principal,
        ps,
        source,
        status,
        up,
        version,
    )
    from homeagent_sdk.catalogue import text

    for title in ("arguments", "options", "commands", "errors"):
        setattr(rich_utils, f"{title.upper()}_PANEL_TITLE", text(f"command.panel_{title}"))
    app = typer.Typer(
        help=text("command.help"), no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
    )
    running, talking = (up, down, status, ps, logs, doctor, backup, version), (chat, persona, memory)
    for group in (*running, *talking, config, source, plugin, principal, key):
        group.add_to(app)
    return app
