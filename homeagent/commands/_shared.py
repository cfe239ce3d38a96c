"""What all commands share: their common options, and how an error ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from homeagent.exit_codes import exit_code_of
from homeagent.launcher.options import default_data_dir
from homeagent.output import tell
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir

DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help=text("command.option_data_dir"), show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help=text("command.option_json"))]


def data_dir(given: Path | None) -> DataDir:
    """Return the data directory that was given, else the usual one of this user."""
    return DataDir(given or default_data_dir())


def run(command: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
    """Run a command to its end and leave the program with its exit code.

    A typed error is told on stderr: what happened, then what to do.
    """
    try:
        code = asyncio.run(command())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (HomeAgentError, OSError) as error:
        tell_error(error)
        raise typer.Exit(exit_code_of(error)) from error
    if code:
        raise typer.Exit(code)


def tell_error(error: BaseException) -> None:
    """Tell a person what went wrong, and on a line of its own what to do."""
    if not isinstance(error, HomeAgentError):
        tell(text("command.error", message=error))
        return
    tell(text("command.error", message=error.message))
    if error.hint:
        tell(f"  {error.hint}")
