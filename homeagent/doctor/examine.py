"""All examinations, in the order in which one would look."""

from __future__ import annotations

import asyncio

from homeagent.doctor.check import Check
from homeagent.doctor.data import examine_data
from homeagent.doctor.ledger import examine_ledger
from homeagent.doctor.machine import examine_machine
from homeagent.doctor.system import examine_system
from homeagent_sdk.paths import DataDir


async def examine(data: DataDir) -> list[Check]:
    """Examine the machine, the data directory, the running system and what it keeps."""
    machine = await asyncio.to_thread(lambda: list(examine_machine(data)))
    directory = await asyncio.to_thread(lambda: list(examine_data(data)))
    return [*machine, *directory, *await examine_system(data), *await examine_ledger(data)]
