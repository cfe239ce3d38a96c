"""``homeagent status``: whether all is well, on one screen."""

from __future__ import annotations

import time
from typing import Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.exit_codes import FAILED, OK
from homeagent.launcher.record import read_record
from homeagent.output import duration_shown, write, write_json, write_table
from homeagent.overview import Overview
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status", help=text("command.help_status"))(_status)


def _status(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show(data_dir(data_dir_), as_json))


async def _show(data: DataDir, as_json: bool) -> int:
    async with operator(data) as peer:
        status: dict[str, Any] = await peer.call("kernel.status", {})
        try:
            sources: list[dict[str, Any]] = (await peer.call("provider.sources", {}, timeout_s=3.0))["sources"]
        except HomeAgentError:
            # The service is being restarted, and the table of services says so.
            sources = []
    overview = Overview.from_status(status)
    record = read_record(data)
    address = record.address if record else None
    if as_json:
        write_json({**status, "address": address, "sources": sources, "ready": overview.is_complete})
    else:
        _write(overview, address, sources)
    return OK if overview.is_complete else FAILED


def _write(overview: Overview, address: str | None, sources: list[dict[str, Any]]) -> None:
    status = overview.raw
    age = duration_shown(time.time() - status["started_at"]) if status.get("started_at") else "-"
    key = "command.status_ready" if overview.is_complete else "command.status_not_ready"
    write(text(key, version=status.get("version", "?"), age=age, address=address or "-"))
    turns = status.get("turns") or {}
    write(text("command.status_turns", **{name: turns.get(name, 0) for name in ("running", "waiting", "finished")}))
    if sources and all(source.get("embedded") for source in sources):
        write(text("command.tiny_model"))
    write()
    parts = [*overview.services.values(), *overview.plugins.values()]
    kinds = ["service"] * len(overview.services) + ["plugin"] * len(overview.plugins)
    rows = [
        {"name": part.name, "kind": kind, "state": part.state, "detail": part.detail}
        for part, kind in zip(parts, kinds, strict=True)
    ]
    rows += [
        {
            "name": f"{source['name']} ({source['model']})",
            "kind": "source",
            "state": source["state"],
            "detail": source.get("reason") or "",
        }
        for source in sources
    ]
    write_table(rows, ("name", "kind", "state", "detail"))
