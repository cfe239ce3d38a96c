"""``homeagent logs``: what the processes wrote, in the order of time; works while nothing runs, too."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from homeagent.commands._shared import DataDirOption, data_dir, run
from homeagent.output import write
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import NotFound
from homeagent_sdk.paths import DataDir

NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", help=text("command.argument_log"))]
FollowOption = Annotated[bool, typer.Option("-f", "--follow", help=text("command.option_follow"))]
LinesOption = Annotated[int, typer.Option("-n", "--lines", min=0, help=text("command.option_lines"))]
RawOption = Annotated[bool, typer.Option("--json", help=text("command.option_json_lines"))]

_LOOK_EVERY_S = 0.25
_BLOCK_BYTES = 64 * 1024


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logs", help=text("command.help_logs"))(_logs)


def _logs(
    name: NameArgument = None,
    follow: FollowOption = False,
    lines: LinesOption = 50,
    data_dir_: DataDirOption = None,
    as_json: RawOption = False,
) -> None:
    run(lambda: _show(data_dir(data_dir_), name, follow, lines, as_json))


async def _show(data: DataDir, name: str | None, follow: bool, count: int, as_json: bool) -> None:
    files = log_files(data, name)
    tails = {file: Tail(file) for file in files}
    found = [line for tail in tails.values() for line in tail.last(count)]
    _write(sorted(found, key=_time_of)[-count:] if count else [], as_json)
    while follow:
        await asyncio.sleep(_LOOK_EVERY_S)
        for file in log_files(data, name):
            tails.setdefault(file, Tail(file))
        _write(sorted((line for tail in tails.values() for line in tail.new()), key=_time_of), as_json)


def log_files(data: DataDir, name: str | None) -> list[Path]:
    """Return the log file of one process, or of all.

    :raises NotFound: there is no log of that name
    """
    found = sorted(data.log.glob("*.log"))
    if name is None:
        return found
    chosen = [file for file in found if file.stem == name]
    if not chosen:
        names = ", ".join(file.stem for file in found) or "-"
        raise NotFound(text("command.no_log", name=name), hint=text("command.no_log_hint", names=names))
    return chosen


class Tail:
    """The end of a log file that may turn over at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_id = 0
        self._position = 0

    def last(self, count: int) -> list[str]:
        """Return the last ``count`` lines, and go on behind them."""
        try:
            with self._path.open("rb") as file:
                end = start = file.seek(0, 2)
                content = b""
                while start > 0 and content.count(b"\n") <= count:
                    start = max(0, start - _BLOCK_BYTES)
                    file.seek(start)
                    content = file.read(end - start)
        except FileNotFoundError:
            return []
        self._file_id, self._position = self._path.stat().st_ino, content.rfind(b"\n") + 1 + start
        return _lines(content)[-count:] if count else []

    def new(self) -> list[str]:
        """Return the whole lines that were added since."""
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                if status.st_ino != self._file_id or status.st_size < self._position:
                    self._file_id, self._position = status.st_ino, 0
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._position += len(whole)
        return _lines(whole)


def _lines(content: bytes) -> list[str]:
    return content.decode("utf-8", "replace").splitlines()


def _write(lines: list[str], as_json: bool) -> None:
    for line in lines:
        write(line if as_json else readable(line))
    sys.stdout.flush()


def _time_of(line: str) -> float:
    return float(_fields(line).get("time") or 0.0)


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def readable(line: str) -> str:
    """Return a log line as a person reads it; what is no JSON stays as it is."""
    fields = _fields(line)
    if "event" not in fields:
        return line
    moment = float(fields.pop("time", 0.0))
    clock = time.strftime("%m-%d %H:%M:%S", time.localtime(moment)) + f".{int(moment * 1000) % 1000:03d}"
    level, service, event = (fields.pop(name, "") for name in ("level", "service", "event"))
    exception = fields.pop("exception", None)
    return "\n".join(_parts(f"{clock} {level:<8}{service:<17}{event}", fields, exception))


def _parts(head: str, fields: dict[str, Any], exception: str | None) -> Iterator[str]:
    yield " ".join([head, *(f"{key}={value}" for key, value in fields.items())])
    if exception:
        yield exception
