"""The journal of turns: accept, save each step, finish exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgpack

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from kernel.database import Database
from kernel.journal import _forgetting
from kernel.journal import _statements as sql
from kernel.journal._forgetting import Lane
from kernel.journal.records import (
    FINAL_STEP,
    OUTCOMES,
    Accepted,
    Conversation,
    Counts,
    Forgotten,
    JournaledTurn,
    NewTurn,
    Selection,
    ToldTurn,
)
from kernel.journal.schema import MIGRATIONS

T = TypeVar("T")
_PRUNE_SLICE = 200


class Journal:
    """``journal.db``: what was accepted, where each turn stands, and how it ended.

    Every method that writes returns only once the change would survive a power cut. All methods may raise
    :class:`Overloaded` (too many requests wait for the disk) and :class:`Unavailable` (the disk is full, read-only or
    broken: the message has the path, the hint what to do). Nothing was changed then, and all works again, without a
    restart, once the cause is gone.

    :param path: the database file
    :param wall_clock: seconds since 1970
    """

    def __init__(self, path: Path, *, queue_limit: int = 4096, wall_clock: Callable[[], float] = time.time) -> None:
        self._database = Database(path, MIGRATIONS, queue_limit=queue_limit)
        self._now = wall_clock

    @property
    def path(self) -> Path:
        """The database file."""
        return self._database.path

    @property
    def waiting(self) -> int:
        """How many writes wait for the disk."""
        return self._database.waiting

    @property
    def transactions(self) -> int:
        """How many transactions were committed since the start; fewer than the writes where these came together."""
        return self._database.transactions

    async def open(self) -> None:
        """Open the file, making it if need be.

        :raises Conflict: it was made by a newer program
        """
        await self._database.open()

    async def close(self) -> None:
        """Finish what waits and close the file."""
        await self._database.close()

    async def accept(self, turn: NewTurn) -> Accepted:
        """Record an input; after this returns it is never lost.

        :returns: the turn of the *first* delivery, if the channel delivered the same ``delivery_id`` before
        :raises Conflict: the turn id is taken
        """
        now = self._now()
        return await self._database.write(lambda connection: _accept(connection, turn, now))

    async def save(self, turn_id: str, step: str, frame: bytes, *, schema_version: int = 1) -> None:
        """Record that an unfinished turn stands at ``step``; reaching another step sets its attempts back to 0.

        :raises NotFound: there is no such turn
        :raises Conflict: it is finished
        """
        values = {"turn_id": turn_id, "step": step, "frame": frame, "schema_version": schema_version}
        await self._database.write(lambda connection: _update_unfinished(connection, sql.SAVE, values))

    async def finish(
        self,
        turn_id: str,
        outcome: str,
        answer: str | None,
        result: dict[str, Any] | None = None,
        *,
        frame: bytes | None = None,
        schema_version: int | None = None,
    ) -> None:
        """Give a turn its one outcome.

        :param outcome: answer, error, stopped, merged or skipped
        :param result: what followers are told at the end, msgpack-able
        :param frame: the last frame; None keeps the one that was saved last
        :raises NotFound: there is no such turn
        :raises Conflict: it has an outcome already; that one stands
        :raises Invalid: there is no such outcome
        """
        if outcome not in OUTCOMES:
            raise Invalid(f"a turn cannot end with {outcome!r}", field="outcome", hint=f"use {sorted(OUTCOMES)}")
        values = {
            "turn_id": turn_id,
            "step": FINAL_STEP,
            "outcome": outcome,
            "answer": answer,
            "result": None if result is None else msgpack.packb(result),
            "frame": frame,
            "schema_version": schema_version,
            "finished_at": self._now(),
        }
        await self._database.write(lambda connection: _update_unfinished(connection, sql.FINISH, values))

    async def begin_attempt(self, turn_id: str) -> int:
        """Count that an unfinished turn is begun, before it is; a crash in between is then seen as an attempt.

        :returns: how many attempts there were at the present step, with this one
        :raises NotFound: there is no such turn
        :raises Conflict: it is finished
        """

        def count(connection: apsw.Connection) -> int:
            _update_unfinished(connection, sql.BEGIN_ATTEMPT, {"turn_id": turn_id})
            return int(connection.execute(sql.ATTEMPTS, (turn_id,)).get)

        return await self._database.write(count)

    async def get(self, turn_id: str) -> JournaledTurn | None:
        """Return a turn, or None if there is none with this id."""
        found = await self._database.read(lambda connection: sql.turns(connection, sql.GET, {"turn_id": turn_id}))
        return found[0] if found else None

    async def unfinished(self) -> list[JournaledTurn]:
        """Return all turns without an outcome, in the order in which they were accepted."""
        return await self._database.read(lambda connection: sql.turns(connection, sql.UNFINISHED, {}))

    async def history(
        self, channel: str, conversation: str, limit: int, *, principal: str | None = None
    ) -> list[JournaledTurn]:
        """Return the last ``limit`` turns of a lane, finished or not, oldest first.

        :param principal: only this one's turns
        """
        values = {"channel": channel, "conversation": conversation, "principal": principal, "limit": limit}
        newest_first = await self._database.read(lambda connection: sql.turns(connection, sql.HISTORY, values))
        return newest_first[::-1]

    async def conversations(self, channel: str, principal: str, limit: int) -> list[Conversation]:
        """Return a principal's conversations on a channel, the one with the newest input first."""
        values = (channel, principal, limit)
        return await self._database.read(
            lambda connection: [Conversation(*row) for row in connection.execute(sql.CONVERSATIONS, values)]
        )

    async def unremembered(self, limit: int) -> list[JournaledTurn]:
        """Return turns that happened and that the memory service was not told of, oldest first."""
        return await self._database.read(lambda connection: sql.turns(connection, sql.UNREMEMBERED, {"limit": limit}))

    async def mark_remembered(self, turn_ids: Iterable[str]) -> None:
        """Record that the memory service has these turns; ids that are unknown or marked already change nothing."""
        ids = [(turn_id,) for turn_id in turn_ids]
        if ids:
            await self._database.write(lambda connection: connection.executemany(sql.MARK_REMEMBERED, ids) and None)

    async def prune(self, older_than_s: float, keep_per_lane: int) -> int:
        """Delete turns that finished long ago, in small slices between which other requests are served.

        Never touched: unfinished turns, turns that the memory service must still be told of, and the last
        ``keep_per_lane`` of each lane.

        :returns: how many were deleted
        """
        values = {"before": self._now() - older_than_s, "keep": keep_per_lane, "slice": _PRUNE_SLICE}
        deleted = 0
        while True:
            slice_deleted = await self._database.write(lambda connection: _prune_slice(connection, values))
            deleted += slice_deleted
            if slice_deleted < _PRUNE_SLICE:
                return deleted

    async def must_be_known(self, after: int, limit: int) -> list[ToldTurn]:
        """Return turns that happened and that the memory must have, in the order in which they were accepted.

        :param after: the sequence of the last turn that was returned before, 0 to begin
        """

        def read(connection: apsw.Connection) -> list[ToldTurn]:
            found = connection.execute(sql.MUST_BE_KNOWN, (after, limit))
            return [ToldTurn(sequence, turn_id, ended, bool(told)) for sequence, turn_id, ended, told in found]

        return await self._database.read(read)

    async def select(self, selection: Selection) -> Forgotten:
        """Count the turns that :meth:`forget` would forget."""
        return await self._database.read(lambda connection: _forgetting.count(connection, selection))

    async def forget(self, selection: Selection, lanes: Iterable[Lane] = ()) -> Forgotten:
        """Take the words out of turns that are over; id, times and outcome stay, so that nothing is accepted twice.

        May be repeated, also after a crash in the middle.

        :param lanes: conversations that have, or had, turns of the selection: their titles are made anew
        """
        found = await self.select(selection)
        forgotten = 0
        while chosen := await self._database.read(
            lambda connection: _forgetting.sequences(connection, selection, _PRUNE_SLICE)
        ):
            forgotten += await self._database.write(partial(_forgetting.empty, chosen=chosen))
        touched = await self._database.read(lambda connection: _forgetting.lanes(connection, selection))
        both = list(dict.fromkeys((*touched, *lanes)))
        for first in range(0, len(both), _PRUNE_SLICE):
            part = both[first : first + _PRUNE_SLICE]
            await self._database.write(partial(_forgetting.rename, chosen=part))
        return Forgotten(forgotten, found.unfinished, found.earlier)

    async def between_writes(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run ``work`` while nothing is written; see :meth:`kernel.database.Database.between_writes`."""
        return await self._database.between_writes(work)

    async def empty_log(self) -> bool:
        """Empty the write-ahead log, which holds what was changed; False if readers kept it from being emptied."""
        return await self._database.empty_log()

    async def counts(self) -> Counts:
        """Return how many turns there are."""
        return await self._database.read(lambda connection: Counts(*connection.execute(sql.COUNTS).get))


def _accept(connection: apsw.Connection, turn: NewTurn, now: float) -> Accepted:
    if turn.delivery_id is not None:
        earlier = connection.execute(sql.BY_DELIVERY, (turn.channel, turn.delivery_id)).get
        if earlier is not None:
            return Accepted(earlier, duplicate=True)
    try:
        connection.execute(sql.ACCEPT, sql.values_of(turn, now))
    except apsw.ConstraintError as error:
        raise Conflict(
            f"the turn {turn.turn_id} was accepted already", field="turn_id", hint="give every input a new id"
        ) from error
    title = _forgetting.title_of(turn.text)
    connection.execute(sql.TOUCH_CONVERSATION, (turn.channel, turn.principal, turn.conversation, title, now))
    return Accepted(turn.turn_id, duplicate=False)


def _update_unfinished(connection: apsw.Connection, statement: str, values: dict[str, Any]) -> None:
    connection.execute(statement, values)
    if connection.changes():
        return
    turn_id = values["turn_id"]
    outcome: Sequence[Any] | None = next(iter(connection.execute(sql.OUTCOME, (turn_id,))), None)
    if outcome is None:
        raise NotFound(f"the journal has no turn {turn_id}", field="turn_id")
    raise Conflict(
        f"the turn {turn_id} has its outcome already: {outcome[0]}",
        field="turn_id",
        hint="a turn ends once; what came later was not recorded",
    )


def _prune_slice(connection: apsw.Connection, values: dict[str, Any]) -> int:
    connection.execute(sql.PRUNE, values)
    deleted = connection.changes()
    if deleted:
        connection.execute(sql.GIVE_BACK_SPACE).get  # noqa: B018 - the pragma works only when it is stepped through
    return deleted
