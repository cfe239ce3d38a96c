"""``homeagent memory import``: events that happened elsewhere, from a file of JSON lines."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.commands.memory._lines import MOST_SHOWN, BadField, Checked, Lines, open_lines, text_of
from homeagent.commands.memory._moments import seconds_of
from homeagent.exit_codes import FAILED, OK
from homeagent.output import tell, write_json
from homeagent.progress import progress
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Overloaded, TimedOut, Unavailable
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help=text("command.argument_memory_file"))]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help=text("command.option_skip_bad"))]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help=text("command.option_dry_run"))]

_BATCH = 500
_BATCH_BYTES = 1024 * 1024
_IN_FLIGHT = 4
_CALL_S = 120.0
_PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_MOST_NAME = 1_000
_MOST_CHARACTERS = 8_000_000
_PASSING = (Unavailable, TimedOut, Overloaded)

Batch = list[dict[str, Any]]
Counts = dict[str, int]


@dataclass(slots=True)
class _Flight:
    """A batch on its way.

    :ivar done: how many bytes of the file were read with it
    """

    batch: Batch
    done: int
    task: asyncio.Task[Counts]


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("import", help=text("command.help_memory_import"))(_import)


def _import(
    file: FileArgument,
    skip_bad: SkipOption = False,
    dry_run: DryRunOption = False,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    run(lambda: _import_file(data_dir(data_dir_), file, skip_bad, dry_run, as_json))


async def _import_file(data: DataDir, file: Path, skip_bad: bool, dry_run: bool, as_json: bool) -> int:
    with ExitStack() as stack:
        lines = await asyncio.to_thread(stack.enter_context, open_lines(file, event_of))
        return await _import_all(data, lines, skip_bad, dry_run, as_json)


async def _import_all(data: DataDir, lines: Lines, skip_bad: bool, dry_run: bool, as_json: bool) -> int:
    started = time.monotonic()
    async with operator(data) as peer:
        with progress("checking", in_bytes=True) as advance:
            checked = await asyncio.to_thread(lines.check, lambda done: advance(done, lines.size))
        told: Counter[str] = Counter()
        if not checked.bad or skip_bad:
            with progress("comparing" if dry_run else "importing", in_bytes=True) as advance:
                async for counts, done in _compared(peer, lines) if dry_run else _sent(peer, lines):
                    told.update(counts)
                    advance(done, lines.size)
    result = {
        "lines": checked.lines,
        "new": told["stored"],
        "known": told["known"],
        "forgotten": told["forgotten"],
        "bad": checked.bad,
        "errors": [{"line": bad.line, "field": bad.field, "message": bad.message} for bad in checked.complaints],
        "dry_run": dry_run,
        "restarts": told["repeated"],
        "seconds": round(time.monotonic() - started, 3),
    }
    _tell(checked, result, skip_bad)
    if as_json:
        write_json(result)
    return FAILED if checked.bad and not skip_bad else OK


def event_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the event in a line, as ``memory.import`` takes it.

    :raises BadField: a field is missing or wrong
    """
    said, reply = text_of(fields, "text"), text_of(fields, "reply", is_needed=False)
    if len(said) + len(reply) > _MOST_CHARACTERS:
        raise BadField("text", text("command.memory_too_long", most=_MOST_CHARACTERS))
    shared = fields.get("shared")
    if shared is not None and not isinstance(shared, bool):
        raise BadField("shared", text("command.memory_no_truth"))
    written = text_of(fields, "time")
    try:
        seconds = seconds_of(written)
    except (ValueError, OverflowError, OSError):
        raise BadField("time", text("command.memory_no_moment", given=written[:40])) from None
    return {
        "id": text_of(fields, "id", most=_MOST_NAME),
        "time": seconds,
        "speaker": text_of(fields, "speaker"),
        "peer": text_of(fields, "peer", most=_MOST_NAME),
        "text": said,
        "reply": reply,
        "shared": bool(shared),
    }


# -- to the memory service --------------------------------------------------------------------------------------------


async def _sent(peer: BusPeer, lines: Lines) -> AsyncIterator[tuple[Counts, int]]:
    """Send the file, a few batches at a time; yields what became of each batch, and how many bytes were read until it.

    The memory service stores one batch after another, so the order of the file is kept although several fly.
    """
    flying: deque[_Flight] = deque()
    try:
        async for batch, done in _in_thread(lines.batches(_BATCH, _BATCH_BYTES)):
            if len(flying) == _IN_FLIGHT:
                yield await _landed(peer, flying)
            flying.append(_Flight(batch, done, asyncio.create_task(_send(peer, batch))))
        while flying:
            yield await _landed(peer, flying)
    finally:
        for flight in flying:
            flight.task.cancel()
        await asyncio.gather(*(flight.task for flight in flying), return_exceptions=True)


async def _landed(peer: BusPeer, flying: deque[_Flight]) -> tuple[Counts, int]:
    """Wait for the first batch. If it failed, those behind it are called back, and follow once it has been sent again.

    One that was sent when the memory service was gone already would otherwise be the first that the next one gets.
    """
    first = flying.popleft()
    try:
        return await first.task, first.done
    except _PASSING as error:
        for flight in flying:
            flight.task.cancel()
        await asyncio.gather(*(flight.task for flight in flying), return_exceptions=True)
        counts = await _send_again(peer, first.batch, error)
        for flight in flying:
            if flight.task.cancelled() or flight.task.exception() is not None:
                flight.task = asyncio.create_task(_send(peer, flight.batch))
        return counts, first.done


async def _send(peer: BusPeer, batch: Batch) -> Counts:
    # Not repeated by the bus, although it could be: each call would come back when it likes, and not in its order.
    counts: Counts = await peer.call("memory.import", {"events": batch}, timeout_s=_CALL_S)
    return counts


async def _send_again(peer: BusPeer, batch: Batch, error: HomeAgentError) -> Counts:
    """Send a batch until it is stored; the memory service may be restarting, or busy."""
    give_up = time.monotonic() + _PATIENCE_S
    pause_s = _FIRST_PAUSE_S
    while time.monotonic() < give_up:
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        try:
            return {**await _send(peer, batch), "repeated": 1}
        except _PASSING as again:
            error = again
    raise error


async def _compared(peer: BusPeer, lines: Lines) -> AsyncIterator[tuple[Counts, int]]:
    """Ask which events of the file are new; yields what would become of each batch, and the bytes read until it."""
    async for batch, done in _in_thread(lines.batches(_BATCH, _BATCH_BYTES)):
        ids = [event["id"] for event in batch]
        answer = await peer.call("memory.known", {"ids": ids}, timeout_s=_CALL_S, idempotent=True)
        new, forgotten = len(answer["missing"]), sum(id in answer["forgotten"] for id in ids)
        yield {"stored": new, "known": len(ids) - new - forgotten, "forgotten": forgotten}, done


async def _in_thread(batches: Iterator[tuple[Batch, int]]) -> AsyncIterator[tuple[Batch, int]]:
    """Read the next batch in a thread; one without events, of a file without any, is left out."""
    while (found := await asyncio.to_thread(next, batches, None)) is not None:
        if found[0]:
            yield found


def _tell(checked: Checked, result: dict[str, Any], skip_bad: bool) -> None:
    for complaint in checked.complaints:
        tell(str(complaint))
    if checked.bad > MOST_SHOWN:
        tell(text("command.memory_more_bad", count=checked.bad - MOST_SHOWN))
    if checked.bad and not skip_bad:
        tell(text("command.memory_not_imported", bad=checked.bad, lines=checked.lines))
        return
    tell(text("command.memory_would_import" if result["dry_run"] else "command.memory_imported", None, **result))
    for name in ("forgotten", "bad", "restarts"):
        if result[name]:
            tell(text(f"command.memory_import_{name}", count=result[name]))
