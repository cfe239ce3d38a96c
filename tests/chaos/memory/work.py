"""What a workload knows of the store it works on, and who is at work on what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import apsw

from memory_service.store.sqlite import SqliteStore
from tests.chaos.memory import invented
from tests.chaos.memory.ledger import ABSENT, FORGOTTEN, STORED, TIERS, Item, State, fact_state

Listed = list[list[Any]]
"""What items become: kind, numbers, state."""


class Wrong(Exception):
    """Raised when the store answers something else than it should."""


class Gate:
    """Lets any number work at once, or one alone."""

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def pass_through(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait for one's turn; who wants to be alone keeps others from entering meanwhile."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._alone)
            if alone:
                self._alone = True
                await self._changed.wait_for(lambda: self._inside == 0)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._alone = self._alone and not alone
                self._changed.notify_all()


class Work:
    """The store, and what is in it.

    :param say: tells a line to whoever kills this process
    :param first: by kind of item (``event``, ``note``, ``fact``, ``media``) the first number that none has yet
    :ivar sources: by note, fact or media block, the number of the event in which it was told
    :ivar space: the number of the space in which vectors are
    """

    def __init__(
        self, store: SqliteStore, say: Callable[..., None], dice: random.Random, first: dict[str, int]
    ) -> None:
        self.store = store
        self.dice = dice
        self.gate = Gate()
        self.forgetting = asyncio.Lock()
        self.sources: dict[Item, int | None] = {}
        self.space = 0
        self._say = say
        self._next = first
        self._operation = 0
        self._states: dict[Item, State] = {}
        self._busy: set[Item] = set()

    async def look(self) -> None:
        """Learn what is there, as a service does that was started again."""
        await self.store._database.read(self._read)

    def _read(self, connection: apsw.Connection) -> None:
        for id, tier in connection.execute("SELECT id, tier FROM event"):
            self._states["event", invented.number_of(id)] = TIERS[tier]
        notes = "SELECT id, summary, source_event FROM document WHERE kind = 'note'"
        for id, summary, source in connection.execute(notes):
            self._learn(("note", invented.number_of(id)), int(summary.split()[1]), source)
        media = "SELECT b.caption, e.id FROM media_block b JOIN event e ON e.number = b.holder"
        for caption, source in connection.execute(media):
            self._learn(("media", invented.number_of(caption)), STORED, source)
        facts = (
            "SELECT s.name, json_group_array(o.name), max(r.source) FROM relation r"
            " JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object"
            " WHERE r.status = 'active' GROUP BY s.name"
        )
        for subject, objects, source in connection.execute(facts):
            number = invented.number_of(subject)
            self._learn(("fact", number), fact_state(number, objects), source)

    def _learn(self, item: Item, state: State, source: str | None) -> None:
        self._states[item] = state
        self.sources[item] = None if source is None else invented.number_of(source)

    def new(self, kind: str, count: int = 1) -> list[int]:
        """Return numbers that no item of the kind has."""
        first = self._next[kind]
        self._next[kind] = first + count
        return list(range(first, first + count))

    def state(self, kind: str, number: int) -> State:
        """Return where an event is, or which version there is of something else."""
        return self._states.get((kind, number), ABSENT)

    def free(self, kind: str, *states: State) -> list[int]:
        """Return what nobody works on, in any of the states; in any at all if none is named."""
        return sorted(
            number
            for (of, number), state in self._states.items()
            if of == kind and (of, number) not in self._busy and (state in states if states else _is_there(state))
        )

    def some(self, numbers: Sequence[int], most: int) -> list[int]:
        """Choose up to so many, at least one; none of none."""
        return sorted(self.dice.sample(numbers, self.dice.randint(1, min(most, len(numbers))))) if numbers else []

    def told_in(self, kind: str, events: Iterable[int]) -> list[int]:
        """Return the notes, facts or media blocks that belong to any of these events."""
        sources = set(events)
        return [number for (of, number), source in self.sources.items() if of == kind and source in sources]

    def begin(self, kind: str, becomes: Listed, *, is_whole: bool = True, **more: Any) -> int:
        """Say what is about to be done; what it is done to belongs to nobody else until :meth:`done`."""
        self._operation += 1
        self._busy |= _items(becomes)
        more["sources"] = [[*item, self.sources[item]] for item in _items(becomes) if item in self.sources]
        self._say(say="begin", operation=self._operation, kind=kind, becomes=becomes, is_whole=is_whole, **more)
        return self._operation

    def done(self, operation: int, becomes: Listed, **more: Any) -> None:
        """Say that it was acknowledged.

        :param more: ``became``, if not all became what they might have
        """
        self._say(say="done", operation=operation, **more)
        for what, numbers, state in more.get("became", becomes):
            self._states |= {(what, number): state for number in numbers}
        self._busy -= _items(becomes)

    @contextmanager
    def held(self, kind: str, numbers: Iterable[int]) -> Iterator[None]:
        """Keep others from what is not changed itself; what somebody else works on stays his."""
        held = {(kind, number) for number in numbers} - self._busy
        self._busy |= held
        try:
            yield
        finally:
            self._busy -= held

    def is_free(self, kind: str, number: int) -> bool:
        """Whether nobody works on it."""
        return (kind, number) not in self._busy


def _items(becomes: Listed) -> set[Item]:
    return {(what, number) for what, numbers, _ in becomes for number in numbers}


def _is_there(state: State) -> bool:
    return state not in (ABSENT, FORGOTTEN)
