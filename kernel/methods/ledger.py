"""kernel.turn_ids, kernel.forget: what the journal owes to the memory, and what it must not keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from homeagent_sdk.bus import BusPeer, CallContext
from homeagent_sdk.errors import Invalid
from kernel.journal import Forgotten, Journal, Selection
from kernel.methods.body import as_map, flag_field, limit_field, text_field
from kernel.prompt import Timelines
from kernel.remember import Rememberer

MOST_IDS: Final = 1000


class LedgerMethods:
    """Answers about the turns that the memory must have, and forgets turns together with it."""

    def __init__(self, journal: Journal, rememberer: Rememberer, timelines: Timelines) -> None:
        self._journal = journal
        self._rememberer = rememberer
        self._timelines = timelines

    def serve(self, bus: BusPeer) -> None:
        """Answer the methods."""
        bus.serve("kernel.turn_ids", self.turn_ids)
        bus.serve("kernel.forget", self.forget)

    async def turn_ids(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Return turns that the memory must have, page by page; ``after`` of the next page is the last one's."""
        fields = as_map(body)
        after = fields.get("after", 0)
        if type(after) is not int or after < 0:
            raise Invalid("after must be a whole number, 0 to begin", field="after")
        turns = await self._journal.must_be_known(after, limit_field(fields, default=MOST_IDS, most=MOST_IDS))
        return {
            "turns": [{"id": turn.turn_id, "time": turn.finished_at, "told": turn.remembered} for turn in turns],
            "after": turns[-1].sequence if turns else None,
        }

    async def forget(self, body: Any, call: CallContext) -> dict[str, Any]:
        """Take the words out of turns that are over; called before the memory forgets them, and safe to repeat."""
        fields = as_map(body)
        selection, lanes = _selection(fields), _lanes(fields)
        if flag_field(fields, "dry_run"):
            return _receipt(await self._journal.select(selection))
        forgotten = await self._journal.forget(selection, lanes)
        self._rememberer.read_again()
        self._timelines.clear()
        return {**_receipt(forgotten), "erased": await self._journal.empty_log()}


def _receipt(forgotten: Forgotten) -> dict[str, Any]:
    return {"turns": forgotten.turns, "unfinished": forgotten.unfinished, "earlier": forgotten.earlier}


def _selection(fields: Mapping[str, Any]) -> Selection:
    ids = _list(fields, "ids")
    if not all(isinstance(id, str) for id in ids):
        raise Invalid("ids must be texts", field="ids")
    principal = text_field(fields, "principal", default="", limit=1000) or None
    after, before = (_moment(fields, name) for name in ("after", "before"))
    if not ids and (principal, after, before) == (None, None, None):
        raise Invalid("say what to forget: ids, principal, after or before", field="ids")
    return Selection(tuple(ids), principal, after, before)


def _lanes(fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    lanes = _list(fields, "lanes")
    for lane in lanes:
        if not isinstance(lane, list) or len(lane) != 3 or not all(isinstance(part, str) for part in lane):
            raise Invalid("a lane is a list of channel, principal and conversation", field="lanes")
    return [(lane[0], lane[1], lane[2]) for lane in lanes]


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name) or []
    if not isinstance(value, list) or len(value) > MOST_IDS:
        raise Invalid(f"{name} must be a list of at most {MOST_IDS}", field=name)
    return value


def _moment(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) not in (int, float):
        raise Invalid(f"{name} must be a time, in seconds since 1970", field=name)
    return float(value)
