"""Tells the memory service of every turn that happened: at once, or when it is back, but never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog

from homeagent_sdk.bus import BusPeer
from homeagent_sdk.errors import HomeAgentError
from kernel.journal import JournaledTurn
from kernel.turns.frame import TurnFrame

_BATCH: Final = 50
_APPEND_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 30.0
_log = structlog.get_logger("memory")


class Rememberer:
    """Reads what the memory was not told of from the journal, tells it, and marks it as told.

    The journal is the queue: a crash in between repeats an append, which changes nothing since it carries the turn id.

    :param unremembered: ``(limit) -> turns`` of the journal
    :param mark_remembered: marks turn ids in the journal
    """

    def __init__(self, bus: BusPeer, unremembered: Callable[..., Any], mark_remembered: Callable[..., Any]) -> None:
        self._bus = bus
        self._unremembered = unremembered
        self._mark = mark_remembered
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with what an earlier run left."""
        self._settled.clear()
        self._wake.set()
        self._task = asyncio.create_task(self._work(), name="rememberer")

    async def stop(self) -> None:
        """Stop; what is left is told after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """A turn ended, or the memory service is back."""
        self._settled.clear()
        self._wake.set()

    async def settle(self, timeout_s: float) -> None:
        """Wait a moment until the memory knows all that happened, so that the next recall finds it."""
        if not self._settled.is_set():
            try:
                await asyncio.wait_for(self._settled.wait(), timeout_s)
            except TimeoutError:
                return

    async def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while turns := await self._unremembered(_BATCH):
                    await self._tell(turns)
                pause_s = _FIRST_PAUSE_S
                if not self._wake.is_set():
                    self._settled.set()
            except HomeAgentError as error:
                _log.warning("the memory was not told yet", reason=str(error), again_in_s=pause_s)
                await self._wait_for_wake(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                self._wake.set()

    async def _wait_for_wake(self, pause_s: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), pause_s)
        except TimeoutError:
            return

    async def _tell(self, turns: list[JournaledTurn]) -> None:
        told = []
        try:
            for turn in turns:
                await self._bus.call(
                    "memory.append", {"event": event_of(turn)}, timeout_s=_APPEND_TIMEOUT_S, idempotent=True
                )
                told.append(turn.turn_id)
        finally:
            if told:
                await self._mark(told)


def event_of(turn: JournaledTurn) -> dict[str, Any]:
    """Return a journaled turn as the event that the memory keeps: the words of both sides, never the prompt."""
    frame = TurnFrame.unpack(turn.frame, turn.schema_version)
    return {
        "id": turn.turn_id,
        "lane": {"channel": turn.channel, "conversation": turn.conversation},
        "principal": turn.principal,
        "speaker": frame.speaker or turn.principal,
        "visibility": {"principals": [turn.principal]},
        "time": turn.accepted_at,
        "input": turn.text,
        "response": turn.answer or "",
        "tools_used": frame.tools_used,
        "tool_results": frame.tool_results,
        "origin": frame.kind,
        "no_memory": turn.no_memory,
    }
