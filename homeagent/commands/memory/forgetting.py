"""``homeagent memory forget``: takes out of every store what must not be remembered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.commands.memory._moments import iso, option
from homeagent.exit_codes import FAILED, OK, USAGE
from homeagent.output import tell, write_json
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=text("command.argument_memory_ids"))]
PeerOption = Annotated[str | None, typer.Option("--peer", metavar="PRINCIPAL", help=text("command.option_forget_peer"))]
BeforeOption = Annotated[str | None, typer.Option("--before", metavar="TIME", help=text("command.option_before"))]
AfterOption = Annotated[str | None, typer.Option("--after", metavar="TIME", help=text("command.option_after"))]
YesOption = Annotated[bool, typer.Option("--yes", help=text("command.option_yes"))]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help=text("command.option_dry_run"))]

_CALL_S = 3_600.0
_MOST_IDS = 1_000
_BACKUPS = ("kernel/*.before-*", "memory/*.bak", "provider/*.before-*", "backups/*", "replaced/*")


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("forget", help=text("command.help_memory_forget"))(_forget)


def _forget(
    ids: IdsArgument = None,
    peer: PeerOption = None,
    before: BeforeOption = None,
    after: AfterOption = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    conditions = (peer, before, after)
    if bool(ids) == any(condition is not None for condition in conditions):
        raise typer.BadParameter(text("command.memory_what_to_forget"))
    if ids and len(ids) > _MOST_IDS:
        raise typer.BadParameter(text("command.memory_too_many_ids", most=_MOST_IDS))
    run(lambda: _forget_all(data_dir(data_dir_), _selection(ids, peer, before, after), yes, dry_run, as_json))


def _selection(ids: list[str] | None, peer: str | None, before: str | None, after: str | None) -> dict[str, Any]:
    if ids:
        return {"ids": ids}
    return {"principal": peer, "before": option("--before", before), "after": option("--after", after)}


async def _forget_all(data: DataDir, selection: dict[str, Any], yes: bool, dry_run: bool, as_json: bool) -> int:
    async with operator(data) as peer:
        found = await _call(peer, selection, dry_run=True)
        if _is_empty(found):
            tell(text("command.memory_nothing_to_forget"))
        else:
            _tell_preview(found)
        if dry_run or _is_empty(found):
            if as_json:
                write_json(found)
            return OK
        if not yes and not _is_confirmed():
            return USAGE
        done = await _call(peer, selection, dry_run=False)
    done["backups"] = [str(path) for path in backups(data)]
    _tell_receipts(done)
    if as_json:
        write_json(done)
    return OK if done["complete"] else FAILED


async def _call(peer: BusPeer, selection: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    answer: dict[str, Any] = await peer.call("memory.forget", {**selection, "dry_run": dry_run}, timeout_s=_CALL_S)
    return answer


def backups(data: DataDir) -> Iterator[Path]:
    """Find copies of the databases in the data directory, which keep what they had when they were made."""
    for pattern in _BACKUPS:
        yield from sorted(data.root.glob(pattern))


def _is_empty(found: dict[str, Any]) -> bool:
    """Whether there is nothing to forget, and nothing left of what was forgotten before."""
    journal = found["receipts"]["journal"]
    counts = (found["count"], found["notes"], found["relations"], journal["turns"], journal["unfinished"])
    return not any(counts) and bool(found["complete"])


def _is_confirmed() -> bool:
    word = text("command.memory_forget_word")
    if not sys.stdin.isatty():
        tell(text("command.memory_needs_yes"))
        return False
    tell(text("command.memory_type_word", word=word))
    if sys.stdin.readline().strip() == word:
        return True
    tell(text("command.memory_not_forgotten"))
    return False


def _tell_preview(found: dict[str, Any]) -> None:
    counts = {name: found[name] for name in ("count", "notes", "relations")}
    tell(text("command.memory_will_forget", None, **counts, turns=found["receipts"]["journal"]["turns"]))
    for example in found["examples"]:
        said = " ".join(example["text"].split())
        tell(f"  {example['id']}  {iso(example['time'])}  {example['speaker']}: {said}")
    if found["count"] > len(found["examples"]):
        tell(text("command.memory_and_more", count=found["count"] - len(found["examples"])))


def _tell_receipts(done: dict[str, Any]) -> None:
    receipts = done["receipts"]
    journal = receipts["journal"]
    tell(text("command.memory_receipt_journal", count=journal["turns"]))
    rows = ", ".join(f"{name} {count}" for name, count in receipts["memory"].items()) or "-"
    tell(text("command.memory_receipt_memory", rows=rows))
    tell(text("command.memory_receipt_log", count=receipts["conversation_log"]["lines"]))
    tell(text("command.memory_receipt_media", count=receipts["media"]["files"]))
    erased = receipts["files"]["erased"] and journal["erased"]
    tell(text("command.memory_receipt_files" if erased else "command.memory_not_erased"))
    if journal["unfinished"]:
        tell(text("command.memory_unfinished", count=journal["unfinished"]))
    if done["backups"]:
        tell(text("command.memory_backups"))
        for path in done["backups"]:
            tell(f"  {path}")
    else:
        tell(text("command.memory_no_backups"))
