"""Has the memory verify all that it stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from homeagent.progress import progress
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Internal

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer


async def verified(peer: BusPeer, timeout_s: float) -> dict[str, Any]:
    """Have the memory verified, with a bar, and return the report: ``{ok, checks: [{name, ok, count, examples}]}``.

    :raises TimedOut: it takes longer
    """
    report: dict[str, Any] | None = None
    with progress("verifying") as advance:
        async with peer.stream("memory.verify", {}, timeout_s=timeout_s) as items:
            async for item in items:
                if "checks" in item:
                    report = item
                else:
                    advance(item["checked"], item["of"])
    if report is None:
        raise Internal(text("command.memory_no_report"), hint=text("command.memory_no_report_hint"))
    return report
