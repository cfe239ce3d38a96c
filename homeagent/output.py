"""How the commands write: tables and colours for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from homeagent_sdk.catalogue import text

if TYPE_CHECKING:
    from rich.console import Console

_STATE_STYLES = {
    "running": "green",
    "ready": "green",
    "ok": "green",
    "starting": "yellow",
    "restarting": "yellow",
    "cooling": "yellow",
    "suspect": "yellow",
    "warn": "yellow",
    "failed": "red",
    "fail": "red",
    "bad_key": "red",
    "stopped": "red",
    "gone": "red",
    "disabled": "dim",
}


def console(*, stderr: bool = False) -> Console:
    """Return a console; it obeys NO_COLOR, and has no colours where its stream is no terminal."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, no_color="NO_COLOR" in os.environ or None)


def write_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def write(line: str = "") -> None:
    """Write a line to stdout, as it is."""
    sys.stdout.write(f"{line}\n")


def tell(line: str) -> None:
    """Write a line to stderr: what is meant for a person and not for a pipe."""
    sys.stderr.write(f"{line}\n")


def write_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write rows as a table.

    :param columns: fields of the rows, in order; headed by the catalogue's ``command.column_<name>``. What the field
        ``state`` says decides its colour
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(text(f"command.column_{column}"), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        cells = (shown(row.get(column)) for column in columns)
        styled = (
            Text(cell, style=_STATE_STYLES.get(cell, "") if column == "state" else "")
            for column, cell in zip(columns, cells, strict=True)
        )
        table.add_row(*styled)
    screen = console()
    if not screen.is_terminal:
        # A pipe has no width: nothing is cut off for it.
        screen.width = 10_000
    screen.print(table, soft_wrap=not screen.is_terminal)


def shown(value: Any) -> str:
    """Return a value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return text("command.yes") if value else text("command.no")
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(part) for part in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def bytes_shown(count: int | None) -> str:
    """Return a size in MB; ``-`` if unknown."""
    return "-" if count is None else f"{count / 1024 / 1024:.1f} MB"


def duration_shown(seconds: float | None) -> str:
    """Return a duration in its two largest units, such as ``3d 4h``."""
    if seconds is None:
        return "-"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
