"""``homeagent version``."""

from __future__ import annotations

import platform

import typer

import homeagent
import homeagent_sdk
from homeagent.commands._shared import JsonOption
from homeagent.output import write, write_json
from homeagent_sdk.catalogue import text


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("version", help=text("command.help_version"))(_version)


def _version(as_json: JsonOption = False) -> None:
    versions = {
        "homeagent": homeagent.__version__,
        "homeagent_sdk": homeagent_sdk.__version__,
        "python": platform.python_version(),
    }
    if as_json:
        write_json(versions)
    else:
        write(" · ".join(f"{name} {version}" for name, version in versions.items()))
