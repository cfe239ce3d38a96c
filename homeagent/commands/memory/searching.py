"""``homeagent memory search``: one question, or many from a file."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.commands.memory._lines import BadField, Lines, open_lines, text_of
from homeagent.commands.memory._moments import iso
from homeagent.exit_codes import FAILED, OK
from homeagent.output import tell, write_json, write_table
from homeagent.progress import progress
from homeagent_sdk.catalogue import text
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

QueryArgument = Annotated[str | None, typer.Argument(metavar="QUERY", help=text("command.argument_memory_query"))]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=200, help=text("command.option_memory_limit"))]
PeerOption = Annotated[str | None, typer.Option("--peer", metavar="PRINCIPAL", help=text("command.option_memory_peer"))]
BatchOption = Annotated[
    Path | None, typer.Option("--batch", metavar="FILE.jsonl", help=text("command.option_memory_batch"))
]

_IN_FLIGHT = 8
_CALL_S = 60.0
_READ_AT_ONCE = 100
_READ_BYTES = 4 * 1024 * 1024
_MOST_CHARACTERS = 100_000
_COLUMNS = ("score", "tier", "time", "speaker", "text", "why", "id")


def add_to(group: typer.Typer) -> None:
    """Add the command."""
    group.command("search", help=text("command.help_memory_search"))(_search)


def _search(
    query: QueryArgument = None,
    limit: LimitOption = 8,
    peer: PeerOption = None,
    batch: BatchOption = None,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    if (query is None) == (batch is None):
        raise typer.BadParameter(text("command.memory_query_or_batch"))
    if batch is not None:
        run(lambda: _answer_file(data_dir(data_dir_), batch, limit, peer))
    elif query is not None:
        run(lambda: _answer_one(data_dir(data_dir_), {"query": query, "peer": peer}, limit, as_json))


async def _answer_one(data: DataDir, question: dict[str, Any], limit: int, as_json: bool) -> None:
    async with operator(data) as peer:
        found = await _ask(peer, question, limit)
    hits = [hit_of(hit) for hit in found["hits"]]
    if as_json:
        write_json(hits)
    elif hits:
        write_table([{**hit, "score": f"{hit['score']:.2f}"} for hit in hits], _COLUMNS)
    if found["no_record"]:
        tell(text("command.memory_no_record" if hits else "command.memory_nothing_found"))


async def _answer_file(data: DataDir, file: Path, limit: int, usual_peer: str | None) -> int:
    with ExitStack() as stack:
        lines = await asyncio.to_thread(stack.enter_context, open_lines(file, question_of))
        return await _answer_all(data, lines, limit, usual_peer)


async def _answer_all(data: DataDir, lines: Lines, limit: int, usual_peer: str | None) -> int:
    """Answer the questions in their order, several at the same time; a line of JSON each."""
    checked = await asyncio.to_thread(lines.check, lambda done: None)
    if checked.bad:
        for complaint in checked.complaints:
            tell(str(complaint))
        return FAILED
    started, answered = time.monotonic(), 0
    flying: deque[tuple[Any, asyncio.Task[dict[str, Any]]]] = deque()
    async with operator(data) as peer:
        with progress("asking") as advance:
            batches = lines.batches(_READ_AT_ONCE, _READ_BYTES)
            while (found := await asyncio.to_thread(next, batches, None)) is not None:
                for question in found[0]:
                    question["peer"] = question["peer"] or usual_peer
                    if len(flying) == _IN_FLIGHT:
                        answered = await _write_first(flying, answered)
                    flying.append((question["id"], asyncio.create_task(_ask(peer, question, limit))))
                advance(answered, checked.lines)
            while flying:
                answered = await _write_first(flying, answered)
                advance(answered, checked.lines)
    tell(text("command.memory_asked", count=answered, seconds=f"{time.monotonic() - started:.1f}"))
    return OK


async def _write_first(flying: deque[tuple[Any, asyncio.Task[dict[str, Any]]]], answered: int) -> int:
    id, task = flying.popleft()
    try:
        found = await task
    except BaseException:
        for _, behind in flying:
            behind.cancel()
        await asyncio.gather(*(behind for _, behind in flying), return_exceptions=True)
        raise
    answer = {"id": id, "hits": [hit_of(hit) for hit in found["hits"]], "abstained": found["no_record"]}
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    return answered + 1


async def _ask(peer: BusPeer, question: dict[str, Any], limit: int) -> dict[str, Any]:
    body = {"query": question["query"], "principal": question["peer"], "limit": limit}
    found: dict[str, Any] = await peer.call("memory.search", body, timeout_s=_CALL_S, idempotent=True)
    return found


def hit_of(hit: dict[str, Any]) -> dict[str, Any]:
    """Return a hit as the command gives it."""
    return {
        "id": hit["id"],
        "text": hit["text"],
        "score": hit["score"],
        "tier": hit["tier"],
        "time": iso(hit["time"]),
        "speaker": hit["speaker"],
        "why": hit["why"],
    }


def question_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the question in a line.

    :raises BadField: a field is missing or wrong
    """
    id = fields.get("id")
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise BadField("id", text("command.memory_missing" if id is None else "command.memory_no_text"))
    query = text_of(fields, "query")
    if len(query) > _MOST_CHARACTERS:
        raise BadField("query", text("command.memory_too_long", most=_MOST_CHARACTERS))
    return {"id": id, "query": query, "peer": text_of(fields, "peer", is_needed=False) or None}
