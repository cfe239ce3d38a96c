"""``homeagent ps``: every process of the system, with its state and its memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from homeagent.client import operator
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run
from homeagent.launcher.record import LauncherRecord, ServiceRecord, read_record
from homeagent.output import bytes_shown, duration_shown, write_json, write_table
from homeagent.overview import PEER_OF_SERVICE, SERVICES, Overview
from homeagent.processes import command_of, descendants_of, is_alive, memory_of, uptime_s
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, TimedOut, Unavailable
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

_COLUMNS = ("name", "kind", "pid", "state", "restarts", "uptime", "rss", "pss")
_ANSWER_S = 3.0

Row = dict[str, Any]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ps", help=text("command.help_ps"))(_ps)


def _ps(data_dir_: DataDirOption = None, as_json: JsonOption = False) -> None:
    run(lambda: _show(data_dir(data_dir_), as_json))


async def _show(data: DataDir, as_json: bool) -> None:
    rows = await list_processes(data)
    if as_json:
        write_json(rows)
        return
    for row in rows:
        row["uptime"] = duration_shown(row["uptime_s"])
        row["rss"], row["pss"] = bytes_shown(row["rss_bytes"]), bytes_shown(row["pss_bytes"])
    write_table(rows, _COLUMNS)


async def list_processes(data: DataDir) -> list[Row]:
    """Return a row for each process: the services, the plugins, the launcher, and what these have started.

    The kernel is asked for states; while it does not answer, what the launcher knows is all there is.

    :raises NotRunning: nothing runs
    """
    record = read_record(data)
    try:
        async with operator(data, _ANSWER_S) as peer:
            overview = Overview.from_status(await peer.call("kernel.status", {}, timeout_s=_ANSWER_S))
            services = record.services if record else await _services_by_bus(peer)
            here = set(services) if record else {name for name in services if _is_here(name, services[name])}
            plugins, zygote = await _plugins(peer, is_here="plugin_host" in here)
    except (Unavailable, TimedOut):
        if record is None:
            raise
        overview, services, plugins, zygote = Overview({}, {}), record.services, [], None
        here = set(services)
    rows = [*_service_rows(services, here, overview), *plugins, *_launcher_row(record)]
    return [*rows, *_worker_rows([row for row in rows if row["uptime_s"] is not None], zygote)]


def _is_here(name: str, service: ServiceRecord) -> bool:
    """Whether a service's pid means the same process here; one in another container has numbers of its own."""
    return service.pid is not None and command_of(service.pid) == name


def _row(name: str, kind: str, pid: int | None, state: str, restarts: int = 0, *, is_here: bool = True) -> Row:
    memory = memory_of(pid) if pid and is_here else None
    uptime = uptime_s(pid) if pid and is_here else None
    return {
        "name": name,
        "kind": kind,
        "pid": pid,
        "state": state,
        "restarts": restarts,
        "uptime_s": None if uptime is None else round(uptime, 1),
        "rss_bytes": memory.rss_bytes if memory else None,
        "pss_bytes": memory.pss_bytes if memory else None,
    }


def _service_rows(services: dict[str, ServiceRecord], here: set[str], overview: Overview) -> Iterator[Row]:
    for name in SERVICES:
        service = services.get(name, ServiceRecord(None, 0, 0.0))
        part = overview.services.get(name)
        is_here = name in here
        if service.pid is None or (is_here and not is_alive(service.pid)):
            state = "restarting" if service.started else "stopped"
        else:
            state = part.state if part else "starting"
        yield _row(name, "service", service.pid, state, service.restarts, is_here=is_here)


async def _services_by_bus(peer: BusPeer) -> dict[str, ServiceRecord]:
    """Return what the hub knows of the services, for a system that systemd or containers keep running."""
    peers = {row["name"]: row for row in (await peer.call("hub.peers", {}, timeout_s=_ANSWER_S))["peers"]}
    found: dict[str, ServiceRecord] = {}
    for service, name in PEER_OF_SERVICE.items():
        if name in peers:
            pid = peers[name].get("pid")
            found[service] = ServiceRecord(pid, 0, float(peers[name].get("since") or time.time()))
    return found


async def _plugins(peer: BusPeer, *, is_here: bool) -> tuple[list[Row], int | None]:
    try:
        reply = await peer.call("host.plugins", {}, timeout_s=_ANSWER_S)
    except HomeAgentError:
        # The plugin host is being restarted: its plugins are not running either.
        return [], None
    rows = [
        _row(
            plugin["name"],
            "plugin",
            plugin.get("pid"),
            plugin["state"],
            plugin.get("restarts") or 0,
            is_here=is_here,
        )
        for plugin in reply["plugins"]
    ]
    return rows, reply.get("zygote_pid") if is_here else None


def _launcher_row(record: LauncherRecord | None) -> list[Row]:
    return [_row("launcher", "launcher", record.pid, "running")] if record else []


def _worker_rows(rows: list[Row], zygote: int | None) -> Iterator[Row]:
    """Yield what the processes above have started besides one another; no name is that of a service or plugin."""
    pids, names = {row["pid"] for row in rows if row["pid"]}, {row["name"] for row in rows}
    for pid in descendants_of(pids):
        if is_alive(pid):
            command = "zygote" if pid == zygote else command_of(pid)
            yield _row(f"{command}:{pid}" if command in names else command, "worker", pid, "running")
