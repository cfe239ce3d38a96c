"""Examines the running system: services, versions, plugins, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import homeagent
from homeagent.client import operator
from homeagent.doctor.check import FAIL, OK, WARN, Check, found
from homeagent.exit_codes import NotRunning
from homeagent.overview import Overview
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir

_ANSWER_S = 5.0
_SOURCE_STATES = {"ready": OK, "starting": WARN, "cooling": WARN, "bad_key": FAIL, "stopped": WARN}


async def examine_system(data: DataDir) -> list[Check]:
    """Examine what runs; that nothing does is only worth a warning."""
    try:
        async with operator(data) as peer:
            status: dict[str, Any] = await peer.call("kernel.status", {}, timeout_s=_ANSWER_S)
            checks = [_version(status), *_parts(Overview.from_status(status))]
            try:
                sources = (await peer.call("provider.sources", {}, timeout_s=_ANSWER_S))["sources"]
            except HomeAgentError as error:
                return [*checks, found("sources", FAIL, "sources_unknown", reason=error.message)]
            return [*checks, *_sources(sources)]
    except NotRunning:
        return [found("running", WARN, "not_running")]
    except HomeAgentError as error:
        return [Check("running", FAIL, error.message, error.hint or "")]


def _version(status: dict[str, Any]) -> Check:
    running = str(status.get("version"))
    if running != homeagent.__version__:
        return found("version", WARN, "version_differs", running=running, installed=homeagent.__version__)
    return found("version", OK, "version", version=running)


def _parts(overview: Overview) -> Iterator[Check]:
    for kind, parts in (("service", overview.services), ("plugin", overview.plugins)):
        for part in parts.values():
            name = f"{kind} {part.name}"
            if part.is_settled:
                yield Check(name, OK, part.state)
            else:
                values = {"name": part.name, "state": part.state, "reason": part.detail or "-"}
                yield found(name, FAIL, f"{kind}_not_running", **values)


def _sources(sources: list[dict[str, Any]]) -> Iterator[Check]:
    if not sources:
        yield found("sources", WARN, "no_source")
    for source in sources:
        name = f"source {source['name']}"
        state = _SOURCE_STATES.get(source["state"], WARN)
        if source.get("embedded"):
            yield found(name, WARN, "source_embedded", model=source["model"])
        elif state == OK:
            yield found(name, OK, "source", model=source["model"], address=source["base_url"])
        else:
            reason = source.get("reason") or source["state"]
            yield found(name, state, f"source_{source['state']}", source=source["name"], reason=reason)
