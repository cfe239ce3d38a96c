"""Writing to the journal when the disk does not always take it: a turn waits a while rather than lose what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog

from homeagent_sdk.catalogue import text as catalogue_text
from homeagent_sdk.errors import Overloaded, Unavailable

T = TypeVar("T")
PATIENCE_S: Final = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_log = structlog.get_logger("turns")


class NotRecorded(Unavailable):
    """Raised when the journal could not be written for a long time; the turn stays unfinished there and goes on from
    what was recorded last when the kernel is started again."""

    def __init__(self, reason: Unavailable | Overloaded) -> None:
        hint = catalogue_text("kernel.not_recorded_hint")
        super().__init__(
            catalogue_text("kernel.not_recorded", reason=reason.message),
            hint=f"{reason.hint}; {hint}" if reason.hint else hint,
            detail=reason.detail,
        )


async def record(write: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
    """Write to the journal, again and again while it cannot be written.

    :param write: called until it succeeds; it must change nothing when it fails
    :raises NotRecorded: it did not succeed within ``patience_s`` seconds
    """
    clock = asyncio.get_running_loop().time
    deadline, pause_s = clock() + patience_s, _FIRST_PAUSE_S
    while True:
        try:
            return await write()
        except (Unavailable, Overloaded) as error:
            if clock() + pause_s > deadline:
                raise NotRecorded(error) from error
            _log.warning("the journal cannot be written; trying again", reason=str(error), again_in_s=pause_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
