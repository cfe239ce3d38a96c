"""``homeagent memory show`` and ``stats``: one item, and how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.commands.memory._moments import iso
from homeagent.output import bytes_shown, shown, write_json, write_table
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

IdArgument = Annotated[str, typer.Argument(metavar="ID", help=text("command.argument_memory_id"))]

_TIMES = frozenset(
    {"time", "created", "updated", "first_time", "last_time", "last_read", "valid_from", "valid_to", "oldest", "newest"}
)


def add_to(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("show", help=text("command.help_memory_show"))(_show)
    group.command("stats", help=text("command.help_memory_stats"))(_stats)


def _show(id: IdArgument, data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _write(data_dir(data_dir_), "memory.show", {"id": id}, as_json))


def _stats(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _write(data_dir(data_dir_), "memory.stats", {}, as_json))


async def _write(data: DataDir, method: str, body: dict[str, Any], as_json: bool) -> None:
    async with operator(data) as peer:
        found = readable(await peer.call(method, body))
    if as_json:
        write_json(found)
    else:
        write_table([{"name": name, "value": value} for name, value in _flat(found)], ("name", "value"))


def readable(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with their times as ISO 8601."""
    return {
        name: iso(value) if name in _TIMES and isinstance(value, int | float) else value
        for name, value in found.items()
    }


def _flat(found: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields, those of a mapping each by its own path."""
    for name, value in found.items():
        path = f"{inside}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{path}.")
        elif name == "bytes":
            yield path, bytes_shown(value)
        else:
            yield path, shown(value)
