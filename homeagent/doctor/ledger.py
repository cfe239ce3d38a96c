"""Compares what the journal accepted with what the memory has, and has the memory verify itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from homeagent.client import operator
from homeagent.doctor.check import FAIL, OK, WARN, Check, found
from homeagent.exit_codes import NotRunning
from homeagent.progress import progress
from homeagent.verification import verified
from homeagent_sdk.errors import HomeAgentError, TimedOut
from homeagent_sdk.paths import DataDir

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

_PAGE = 1_000
_COMPARE_S = 60.0
_VERIFY_S = 120.0
_ANSWER_S = 10.0
_LOOKS = 5
_PAUSE_S = 1.0
_MOST_SHOWN = 5
_OWNERS = ("kernel", "memory", "provider")


async def examine_ledger(data: DataDir) -> list[Check]:
    """Examine whether nothing that was accepted is lost. Works while turns run, and ends after a few minutes."""
    schemas = await asyncio.to_thread(lambda: list(_schemas(data)))
    try:
        async with operator(data) as peer:
            return [*schemas, await _compared(peer), *await _verified(peer)]
    except NotRunning:
        return [*schemas, found("ledger", WARN, "ledger_not_running")]
    except HomeAgentError as error:
        return [*schemas, Check("ledger", FAIL, error.message, error.hint or "")]


# -- journal and memory -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ledger:
    """What a comparison found.

    :ivar lost: turns of which the memory said that it has them, and has not
    :ivar waiting: turns of which the memory was not told yet
    :ivar forgotten: turns that the memory has forgotten, and the journal has not
    """

    compared: int = 0
    is_whole: bool = True
    lost: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)


async def _compared(peer: BusPeer) -> Check:
    try:
        ledger = await _compare(peer)
    except HomeAgentError as error:
        return Check("ledger", FAIL, error.message, error.hint or "")
    values = {"count": ledger.compared, "seconds": int(_COMPARE_S)}
    if ledger.lost:
        return found("ledger", FAIL, "ledger_lost", lost=len(ledger.lost), ids=_some(ledger.lost), **values)
    if ledger.forgotten:
        return found("ledger", WARN, "ledger_forgotten", ids=_some(ledger.forgotten), **values)
    if ledger.waiting:
        return found("ledger", WARN, "ledger_waiting", waiting=len(ledger.waiting), ids=_some(ledger.waiting), **values)
    if not ledger.is_whole:
        return found("ledger", WARN, "ledger_part", **values)
    return found("ledger", OK, "ledger", **values)


async def _compare(peer: BusPeer) -> _Ledger:
    """Page through the turns that the memory must have."""
    ledger, after, end = _Ledger(), 0, time.monotonic() + _COMPARE_S
    with progress("comparing_turns") as advance:
        while after is not None:
            if time.monotonic() > end:
                ledger.is_whole = False
                break
            page = await _call(peer, "kernel.turn_ids", {"after": after, "limit": _PAGE})
            told = {turn["id"]: bool(turn["told"]) for turn in page["turns"]}
            await _compare_page(peer, ledger, told)
            ledger.compared += len(told)
            advance(ledger.compared, None)
            after = page["after"]
    return ledger


async def _compare_page(peer: BusPeer, ledger: _Ledger, told: dict[str, bool]) -> None:
    """Compare one page; one that ended a moment ago may still be on its way, so that what is missing is asked again."""
    if not told:
        return
    answer = await _call(peer, "memory.known", {"ids": list(told)})
    for _ in range(_LOOKS):
        if not answer["missing"]:
            break
        await asyncio.sleep(_PAUSE_S)
        again = await _call(peer, "memory.known", {"ids": answer["missing"]})
        answer = {"missing": again["missing"], "forgotten": [*answer["forgotten"], *again["forgotten"]]}
    ledger.forgotten += answer["forgotten"]
    for id in answer["missing"]:
        (ledger.lost if told[id] else ledger.waiting).append(id)


async def _call(peer: BusPeer, method: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await peer.call(method, body, timeout_s=_ANSWER_S, idempotent=True)
    return answer


# -- the memory itself ------------------------------------------------------------------------------------------------


async def _verified(peer: BusPeer) -> list[Check]:
    try:
        report = await verified(peer, _VERIFY_S)
    except TimedOut:
        return [found("memory", WARN, "memory_not_verified", seconds=int(_VERIFY_S))]
    except HomeAgentError as error:
        return [Check("memory", FAIL, error.message, error.hint or "")]
    wrong = [check for check in report["checks"] if not check["ok"]]
    if not wrong and report["ok"]:
        return [found("memory", OK, "memory_verified", count=len(report["checks"]))]
    return [
        found(f"memory {check['name']}", FAIL, "memory_wrong", count=check["count"], ids=_some(check["examples"]))
        for check in wrong
    ]


def _some(ids: Any) -> str:
    shown = [str(id) for id in ids or []]
    return ", ".join(shown[:_MOST_SHOWN]) + (", …" if len(shown) > _MOST_SHOWN else "")


# -- versions ---------------------------------------------------------------------------------------------------------


def _schemas(data: DataDir) -> Iterator[Check]:
    """Say of every database which schema it has."""
    for owner in _OWNERS:
        for path in sorted((data.root / owner).glob("*.db")):
            name = f"schema {path.relative_to(data.root)}"
            try:
                version, what, applied = _schema_of(path)
            except (apsw.Error, LookupError) as error:
                yield found(name, WARN, "schema_unknown", reason=str(error) or type(error).__name__)
            else:
                yield found(name, OK, "schema", version=version, what=what, day=_day(applied))


def _schema_of(path: Path) -> tuple[int, str, float]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        question = "SELECT version, name, applied_at FROM schema_version ORDER BY version DESC LIMIT 1"
        for version, name, applied in connection.execute(question):
            return version, name, applied
    finally:
        connection.close()
    raise LookupError("no version is recorded")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
