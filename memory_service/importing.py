"""Events that happened elsewhere: checked, then stored in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from homeagent_sdk.errors import Overloaded
from memory_service.fields import Fields
from memory_service.model import Event
from memory_service.requests import MAX_EVENT_CHARACTERS, checked_time
from memory_service.store.abc import Store

CHANNEL = "import"
MAX_EVENTS = 500
"""Of one call."""

_AT_ONCE = 32
"""So many are checked before others have their turn: half a millisecond."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Importing:
    """Takes batches of events one after another: events of the same moment keep the order in which they came.

    :param stored: called when there are new events
    """

    def __init__(self, store: Store, stored: Callable[[], None]) -> None:
        self._store = store
        self._stored = stored
        self._turn = asyncio.Lock()

    async def take(self, body: Any) -> dict[str, int]:
        """Store a batch; repeating it changes nothing.

        :returns: how many were ``stored``, were ``known`` already, or were ``forgotten`` earlier and so left out
        :raises Invalid: with ``field`` such as ``events.3.time``; nothing of the batch is stored then
        """
        async with self._turn:
            # Inside: a short batch that is checked sooner must not overtake the one before it.
            events = await _parse(body)
            ids = [event.id for event in events]
            forgotten = await self._store.forgetting.forgotten(ids)
            new = set(await self._store.events.missing(ids)) - forgotten
            if new:
                await self._append([event for event in events if event.id in new])
                self._stored()
        left_out = sum(id in forgotten for id in ids)
        return {"stored": len(new), "known": len(events) - len(new) - left_out, "forgotten": left_out}

    async def _append(self, events: list[Event]) -> None:
        """Store them, and wait where the store has too much to do: until the caller's deadline passes."""
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._store.events.append_many(events)
            except Overloaded:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            else:
                return


async def _parse(body: Any) -> list[Event]:
    fields = Fields(body)
    each = fields.each("events")
    if len(each) > MAX_EVENTS:
        raise fields.wrong("events", f"has {len(each)} entries, at most {MAX_EVENTS} are allowed")
    events: list[Event] = []
    for item in each:
        events.append(_event(item))
        if len(events) % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return events


def _event(fields: Fields) -> Event:
    peer = fields.name("peer")
    shared = fields.take("shared", bool, False)
    said, reply = fields.text("text"), fields.text("reply", default="")
    if len(said) + len(reply) > MAX_EVENT_CHARACTERS:
        raise fields.wrong("text", f"and its reply have more than {MAX_EVENT_CHARACTERS} characters")
    return Event(
        id=fields.name("id"),
        channel=CHANNEL,
        conversation=peer,
        principal=peer,
        speaker=fields.text("speaker", default="") or peer,
        visible_to=() if shared else (peer,),
        shared=shared,
        time=checked_time(fields),
        input=said,
        response=reply,
    )
