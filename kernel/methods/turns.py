"""kernel.submit, kernel.follow, kernel.stop, kernel.history, kernel.conversations."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import structlog

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Conflict, Denied, HomeAgentError, Invalid, NotFound, Overloaded
from kernel.journal import Journal, JournaledTurn, NewTurn
from kernel.methods.body import as_map, flag_field, limit_field, text_field
from kernel.sources import ANY_MODEL, Sources
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.history import recorded_item
from kernel.turns.lanes import Lanes
from kernel.turns.machine import TurnMachine

MOST_TEXT_CHARACTERS: Final = 4 * 1024 * 1024
LEVELS: Final = ("L1", "L2", "L3", "L4")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_KINDS: Final = ("user", "self")
_log = structlog.get_logger("turns")


class TurnMethods:
    """Takes inputs in and lets channels follow what becomes of them.

    :param is_principal: tells whether a principal exists
    """

    def __init__(
        self,
        bus: BusPeer,
        journal: Journal,
        lanes: Lanes,
        machine: TurnMachine,
        sources: Sources,
        is_principal: Callable[[str], bool],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._journal = journal
        self._lanes = lanes
        self._machine = machine
        self._sources = sources
        self._is_principal = is_principal
        self._wall_clock = wall_clock
        self._accepting: set[asyncio.Task[dict[str, Any]]] = set()

    def serve(self) -> None:
        """Answer the methods."""
        self._bus.serve("kernel.submit", self.submit)
        self._bus.serve_stream("kernel.follow", self.follow)
        self._bus.serve("kernel.stop", self.stop)
        self._bus.serve("kernel.history", self.history)
        self._bus.serve("kernel.conversations", self.conversations)

    async def submit(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Accept an input. It is durable when the answer says so; a repeated delivery gets the first one's turn."""
        frame = self._frame(as_map(body), call)
        if frame.model not in ANY_MODEL and not await self._sources.have(frame.model):
            raise NotFound(f"no source has the model {frame.model!r}", field="model", hint="`homeagent config list`")
        # Shielded: once it is in the journal it must also run, even if the caller has gone away meanwhile.
        accepting = asyncio.create_task(self._accept(frame), name="accept")
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepted)
        return await asyncio.shield(accepting)

    async def _accept(self, frame: TurnFrame) -> dict[str, Any]:
        new = NewTurn(
            turn_id=frame.turn_id,
            channel=frame.channel,
            conversation=frame.conversation,
            principal=frame.principal,
            text=frame.text,
            frame=frame.pack(),
            schema_version=SCHEMA_VERSION,
            delivery_id=frame.delivery_id,
            no_memory=frame.no_memory,
        )
        with self._lanes.room(frame.lane):
            accepted = await self._journal.accept(new)
            if accepted.duplicate:
                await self._check_owner(accepted.turn_id, frame)
                return {"turn_id": accepted.turn_id, "status": "duplicate"}
            self._machine.expect(frame)
            self._lanes.add(frame)
        await self._announce(frame)
        return {"turn_id": frame.turn_id, "status": "accepted"}

    async def _announce(self, frame: TurnFrame) -> None:
        event = {"turn_id": frame.turn_id, "channel": frame.channel, "conversation": frame.conversation}
        try:
            await self._bus.publish("turn.accepted", event)
        except HomeAgentError as error:
            _log.warning("event not published", topic="turn.accepted", turn=frame.turn_id, reason=str(error))

    async def _check_owner(self, turn_id: str, frame: TurnFrame) -> None:
        """Refuse to hand one principal the turn of another who happened to use the same delivery id."""
        turn = await self._journal.get(turn_id)
        if turn is not None and turn.principal != frame.principal:
            raise Conflict(
                f"the delivery id {frame.delivery_id!r} is taken", field="delivery_id", hint="use ids of your own"
            )

    def _accepted(self, accepting: asyncio.Task[dict[str, Any]]) -> None:
        self._accepting.discard(accepting)
        if not accepting.cancelled() and (error := accepting.exception()) is not None:
            _log.info("an input was not accepted", reason=str(error))

    def _frame(self, body: Mapping[str, Any], call: CallContext) -> TurnFrame:
        text = text_field(body, "text", limit=MOST_TEXT_CHARACTERS)
        if not text.strip():
            raise Invalid("the message is empty", field="text")
        channel = text_field(body, "channel", limit=64)
        if not _NAME.fullmatch(channel):
            raise Invalid(f"{channel!r} is not the name of a channel", field="channel")
        kind = text_field(body, "kind", default="user")
        level = text_field(body, "level", default="L2")
        if kind not in _KINDS or level not in LEVELS:
            raise Invalid("kind is user or self, level L1 to L4", field="kind" if kind not in _KINDS else "level")
        principal = text_field(body, "principal", limit=64)
        if call.origin.tier == "external":
            principal, kind = f"plugin:{call.origin.name}", "user"
            level = min(level, "L3")
        elif not self._is_principal(principal):
            raise Denied(f"there is no principal {principal!r}", field="principal", hint="`homeagent principal list`")
        delivery = text_field(body, "delivery_id", default="", limit=200)
        return TurnFrame(
            turn_id=_new_turn_id(self._wall_clock()),
            channel=channel,
            conversation=text_field(body, "conversation", limit=200),
            principal=principal,
            text=text,
            accepted_at=self._wall_clock(),
            speaker=text_field(body, "speaker", default="", limit=200),
            kind=kind,
            level=level,
            delivery_id=delivery or None,
            no_memory=flag_field(body, "no_memory"),
            model=text_field(body, "model", default="auto", limit=200),
            trace=call.trace,
        )

    async def follow(self, body: Any, call: CallContext) -> AsyncIterator[dict[str, Any]]:
        """Yield what a turn does, and its outcome last; of a finished turn, or if asked for, the outcome alone."""
        fields = as_map(body)
        turn_id, outcome_only = text_field(fields, "turn_id", limit=64), flag_field(fields, "outcome_only")
        feed = self._machine.feed(turn_id)
        if feed is None:
            turn = await self._journal.get(turn_id)
            if turn is None:
                raise NotFound(
                    f"there is no turn {turn_id}", field="turn_id", hint="old turns are pruned after a while"
                )
            if turn.outcome is not None:
                yield recorded_item(turn)
                return
            feed = self._machine.feed(turn_id)
            if feed is None:
                raise NotFound(
                    f"the turn {turn_id} is not running", field="turn_id", hint="restart the kernel to resume it"
                )
        if not feed.has_room:
            raise Overloaded(f"too many follow the turn {turn_id} already")
        async with aclosing(feed.follow(outcome_only=outcome_only)) as items:
            async for item in items:
                yield item

    async def stop(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Stop the turn that runs in a conversation."""
        fields = as_map(body)
        lane = (text_field(fields, "channel", limit=64), text_field(fields, "conversation", limit=200))
        return {"stopped": self._lanes.stop(lane)}

    async def history(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return the last turns of a conversation, oldest first."""
        fields = as_map(body)
        turns = await self._journal.history(
            text_field(fields, "channel", limit=64),
            text_field(fields, "conversation", limit=200),
            limit_field(fields),
            principal=text_field(fields, "principal", limit=64),
        )
        return {
            "turns": [
                {
                    "turn_id": turn.turn_id,
                    "time": turn.accepted_at,
                    "text": turn.text,
                    "answer": turn.answer,
                    "outcome": turn.outcome,
                    "kind": _kind(turn),
                }
                for turn in turns
            ]
        }

    async def conversations(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return a principal's conversations on a channel, newest first."""
        fields = as_map(body)
        found = await self._journal.conversations(
            text_field(fields, "channel", limit=64), text_field(fields, "principal", limit=64), limit_field(fields)
        )
        return {
            "conversations": [
                {"conversation": each.conversation, "title": each.title, "last_time": each.last_time} for each in found
            ]
        }


def _kind(turn: JournaledTurn) -> str:
    try:
        return TurnFrame.unpack(turn.frame, turn.schema_version).kind
    except Invalid:
        return "user"  # written by a newer program, or damaged; its words can be shown all the same


def _new_turn_id(now: float) -> str:
    """Return an id that sorts by time: milliseconds and 80 random bits, hexadecimal."""
    return f"{int(now * 1000):012x}{secrets.token_hex(10)}"
