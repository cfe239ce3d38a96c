"""kernel.submit, kernel.follow, kernel.stop, kernel.history, kernel.conversations."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Denied, Invalid, NotFound, Overloaded
from kernel.journal import Journal, NewTurn
from kernel.methods.body import as_map, limit_field, text_field
from kernel.turns.frame import SCHEMA_VERSION, TurnFrame
from kernel.turns.lanes import Lanes
from kernel.turns.machine import TurnMachine

MOST_TEXT_CHARACTERS: Final = 4 * 1024 * 1024
LEVELS: Final = ("L1", "L2", "L3", "L4")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_KINDS: Final = ("user", "self")


class TurnMethods:
    """Takes inputs in and lets channels follow what becomes of them.

    :param is_principal: tells whether a principal exists
    """

    def __init__(
        self,
        journal: Journal,
        lanes: Lanes,
        machine: TurnMachine,
        is_principal: Callable[[str], bool],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._lanes = lanes
        self._machine = machine
        self._is_principal = is_principal
        self._wall_clock = wall_clock

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.submit", self.submit)
        bus.serve_stream("kernel.follow", self.follow)
        bus.serve("kernel.stop", self.stop)
        bus.serve("kernel.history", self.history)
        bus.serve("kernel.conversations", self.conversations)

    async def submit(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Accept an input. It is durable when the answer says so; a repeated delivery gets the first one's turn."""
        frame = self._frame(as_map(body), call)
        self._lanes.check_room(frame.lane)
        accepted = await self._journal.accept(
            NewTurn(
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
        )
        if accepted.duplicate:
            return {"turn_id": accepted.turn_id, "status": "duplicate"}
        self._machine.expect(frame)
        self._lanes.add(frame)
        return {"turn_id": frame.turn_id, "status": "accepted"}

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
            no_memory=bool(body.get("no_memory", False)),
            model=text_field(body, "model", default="auto", limit=200),
            trace=call.trace,
        )

    async def follow(self, body: Any, call: CallContext) -> AsyncIterator[dict[str, Any]]:
        """Yield what a turn does, and its outcome last; of a finished turn, or if asked for, the outcome alone."""
        fields = as_map(body)
        turn_id, outcome_only = text_field(fields, "turn_id", limit=64), bool(fields.get("outcome_only", False))
        feed = self._machine.feed(turn_id)
        if feed is None:
            turn = await self._journal.get(turn_id)
            if turn is None:
                raise NotFound(
                    f"there is no turn {turn_id}", field="turn_id", hint="old turns are pruned after a while"
                )
            if turn.outcome is not None:
                yield turn.result or {
                    "type": "outcome",
                    "outcome": turn.outcome,
                    "text": turn.answer or "",
                    "error": None,
                }
                return
            feed = self._machine.feed(turn_id)
            if feed is None:
                raise NotFound(
                    f"the turn {turn_id} is not running", field="turn_id", hint="restart the kernel to resume it"
                )
        if not feed.has_room:
            raise Overloaded(f"too many follow the turn {turn_id} already")
        async for item in feed.follow():
            if not outcome_only or item["type"] == "outcome":
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
                    "kind": TurnFrame.unpack(turn.frame, turn.schema_version).kind,
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


def _new_turn_id(now: float) -> str:
    """Return an id that sorts by time: milliseconds and 80 random bits, hexadecimal."""
    return f"{int(now * 1000):012x}{secrets.token_hex(10)}"
