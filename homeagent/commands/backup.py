"""``homeagent backup`` and ``homeagent restore``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.output import bytes_shown, console, tell, write, write_json
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent.backup.making import Watch

TargetArgument = Annotated[
    Path | None, typer.Argument(metavar="DIR", help=text("command.argument_backup_target"), show_default=False)
]
BackupArgument = Annotated[Path, typer.Argument(metavar="DIR", help=text("command.argument_backup"))]
KeepOption = Annotated[
    int | None, typer.Option("--keep", metavar="N", min=1, help=text("command.option_keep"), show_default=False)
]
WithKeysOption = Annotated[bool, typer.Option("--with-keys", help=text("command.option_with_keys"))]
WithPluginDataOption = Annotated[bool, typer.Option("--with-plugin-data", help=text("command.option_with_plugin_data"))]
YesOption = Annotated[bool, typer.Option("--yes", help=text("command.option_yes"))]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("backup", help=text("command.help_backup"))(_backup)
    app.command("restore", help=text("command.help_restore"))(_restore)


def _backup(
    target: TargetArgument = None,
    keep: KeepOption = None,
    with_keys: WithKeysOption = False,
    with_plugin_data: WithPluginDataOption = False,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    run(lambda: _make(data_dir(data_dir_), target, keep, (with_keys, with_plugin_data), as_json))


def _restore(
    backup: BackupArgument, yes: YesOption = False, data_dir_: DataDirOption = None, as_json: JsonOption = False
) -> None:
    run(lambda: _put_back(data_dir(data_dir_), backup, yes, as_json))


async def _make(data: DataDir, target: Path | None, keep: int | None, also: tuple[bool, bool], as_json: bool) -> None:
    from homeagent.backup import making
    from homeagent.backup.retention import remove_older

    began = time.monotonic()
    path = (target or data.root / "backups" / time.strftime("%Y%m%d-%H%M%S")).absolute()
    with_keys, with_plugin_data = also
    with _progress() as watch:
        manifest = await making.make(data, making.Request(path, with_keys, with_plugin_data), watch)
    removed = await asyncio.to_thread(remove_older, data, path.parent, keep) if keep is not None else []
    seconds = time.monotonic() - began
    if as_json:
        made = {"path": str(path), **manifest.to_dict(), "bytes": manifest.bytes, "seconds": round(seconds, 2)}
        write_json({**made, "removed": [str(each) for each in removed]})
    else:
        write(str(path))
        values: dict[str, Any] = {"size": bytes_shown(manifest.bytes), "seconds": seconds, "ms": manifest.paused_ms}
        tell(text("command.backup_made", time=_shown(manifest.time), **values))
        if removed:
            tell(text("command.backup_removed", count=len(removed)))
    if with_keys:
        tell(text("command.warning", message=text("command.backup_has_keys", path=path)))


async def _put_back(data: DataDir, backup: Path, yes: bool, as_json: bool) -> None:
    from homeagent.backup import manifest, restoring

    earlier = restoring.unfinished(data)
    if earlier is not None:
        tell(text("command.restore_goes_on", path=earlier.backup))
    else:
        moment = manifest.read(backup).time
        if not yes:
            _confirm(text("command.restore_confirm", time=_shown(moment), path=data.root))
    with _progress() as watch:
        plan = await asyncio.to_thread(restoring.restore, data, backup, watch)
    aside = data.root / plan.aside
    if as_json:
        done = {"backup": plan.backup, "time": plan.time, "files": list(plan.files)}
        write_json({**done, "replaced": str(aside) if aside.exists() else None})
        return
    tell(text("command.restore_done", time=_shown(plan.time), path=plan.backup))
    if aside.exists():
        tell(text("command.restore_replaced", path=aside))


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise Invalid(text("command.restore_needs_yes"), hint=text("command.restore_needs_yes_hint"))
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _shown(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


@contextmanager
def _progress() -> Iterator[Watch]:
    """Give what is told how far the work is: a bar on a terminal, nothing elsewhere."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda stage, done, of: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    bars: dict[str, TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=screen, transient=True) as progress:

        def watch(stage: str, done: int, of: int) -> None:
            if stage not in bars:
                bars[stage] = progress.add_task(text(f"command.backup_stage_{stage}"))
            progress.update(bars[stage], completed=done, total=of)

        yield watch
