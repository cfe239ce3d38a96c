"""What a workload does with a store, each operation said before it begins and again when it is acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apsw

from memory_service.model import Selection, ToEmbed
from memory_service.store.sqlite import SqliteStore
from tests.chaos.memory import invented
from tests.chaos.memory.ledger import ABSENT, CONTEXT, DOCUMENT, FORGOTTEN, Item, State

Listed = list[list[Any]]


class Wrong(Exception):
    """Raised when the store answers something else than it should."""


@dataclass(slots=True)
class Next:
    """Numbers that nothing has yet."""

    event: int
    note: int
    operation: int = 0


class Work:
    """What is known of the store, and who is at work on what.

    :param say: tells a line to whoever kills this process
    """

    def __init__(self, store: SqliteStore, say: Callable[..., None], dice: random.Random, numbers: Next) -> None:
        self.store = store
        self.dice = dice
        self.next = numbers
        self.space = 0
        self._say = say
        self._states: dict[Item, State] = {}
        self._sources: dict[int, int | None] = {}
        self._busy: set[Item] = set()
        self._one_forgets = asyncio.Lock()

    async def look(self) -> None:
        """Learn what is there, as a service does that was started again."""

        def read(connection: apsw.Connection) -> None:
            for id, tier in connection.execute("SELECT id, tier FROM event"):
                self._states["event", invented.number_of(id)] = CONTEXT if tier == "context" else DOCUMENT
            for id, summary, source in connection.execute(
                "SELECT id, summary, source_event FROM document WHERE kind = 'note'"
            ):
                number = invented.number_of(id)
                self._states["note", number] = int(summary.split()[1])
                self._sources[number] = None if source is None else invented.number_of(source)

        await self.store._database.read(read)

    async def finish_forgetting(self) -> None:
        """Do what a service does at its start if it was killed while it forgot."""
        async with self._one_forgets:
            if not await self.store.forgetting.is_settled():
                await self.store.forgetting.erase()
                await self.store.forgetting.settle()

    def begin(self, kind: str, becomes: Listed, *, is_whole: bool = True, **more: Any) -> int:
        """Say what is about to be done; what it is done to belongs to nobody else until :meth:`done`."""
        self.next.operation += 1
        self._busy |= {(what, number) for what, numbers, _ in becomes for number in numbers}
        self._say(
            say="begin", operation=self.next.operation, kind=kind, becomes=becomes, is_whole=is_whole, **more
        )
        return self.next.operation

    def done(self, operation: int, becomes: Listed, **more: Any) -> None:
        """Say that it was acknowledged."""
        self._say(say="done", operation=operation, **more)
        for what, numbers, state in more.get("became", becomes):
            for number in numbers:
                self._states[what, number] = state
        self._busy -= {(what, number) for what, numbers, _ in becomes for number in numbers}

    def free(self, what: str, *states: State) -> list[int]:
        """Return what nobody works on, in any of the states; in any at all if none is named."""
        return sorted(
            number
            for (kind, number), state in self._states.items()
            if kind == what and (kind, number) not in self._busy and (state in states if states else _is_there(state))
        )

    def some(self, numbers: Sequence[int], most: int) -> list[int]:
        """Choose up to so many, at least one; none of none."""
        return sorted(self.dice.sample(numbers, self.dice.randint(1, min(most, len(numbers))))) if numbers else []

    # -- operations -------------------------------------------------------------------------------------------------

    async def append(self, number: int | None = None) -> None:
        """A turn is over; appended once more if ``number`` names one whose append was not acknowledged."""
        if number is None:
            number, self.next.event = self.next.event, self.next.event + 1
        becomes: Listed = [["event", [number], CONTEXT]]
        operation = self.begin("append", becomes)
        await self.store.events.append(invented.event(number))
        (stored,) = await self.store.events.get([invented.event_id(number)])
        if stored != invented.event(number):
            raise Wrong(f"event {number} was acknowledged, and then read as {stored}")
        self.done(operation, becomes)

    async def bring_in(self) -> None:
        """Import a file, of which a part is known already."""
        first = self.next.event
        new = list(range(first, first + self.dice.randint(2, 90)))
        self.next.event = new[-1] + 1
        known = self.some(self.free("event"), 5)
        becomes: Listed = [["event", new, CONTEXT]]
        operation = self.begin("import", becomes, is_whole=False)
        with self._held(known):
            stored = await self.store.events.append_many([invented.event(number) for number in [*known, *new]])
        if stored != len(new):
            raise Wrong(f"{stored} events were new, and not {len(new)}")
        self.done(operation, becomes)

    async def archive(self) -> None:
        """Some events leave the context."""
        if not (leaving := self.some(self.free("event", CONTEXT), 30)):
            return
        becomes: Listed = [["event", leaving, DOCUMENT]]
        operation = self.begin("archive", becomes)
        documents = await self.store.documents.archive(_ids(leaving), "ann")
        moved = sorted(invented.number_of(id) for document in documents for id in document.events)
        if moved != leaving:
            raise Wrong(f"{leaving} were to be archived, {moved} were")
        self.done(operation, becomes)

    async def bring_back(self) -> None:
        """Some events of documents return."""
        if not (returning := self.some(self.free("event", DOCUMENT), 30)):
            return
        becomes: Listed = [["event", returning, CONTEXT]]
        operation = self.begin("return", becomes)
        returned = await self.store.documents.bring_back(_ids(returning))
        if sorted(map(invented.number_of, returned)) != returning:
            raise Wrong(f"{returning} were to return, {returned} did")
        self.done(operation, becomes)

    async def write_note(self) -> None:
        """A note is written, or written again."""
        known = self.free("note")
        if known and self.dice.random() < 0.4:
            number = self.dice.choice(known)
            version = int(self._states["note", number]) + 1
        else:
            number, self.next.note, version = self.next.note, self.next.note + 1, 1
            self._sources[number] = self.dice.choice([None, *self.free("event")[-5:]])
        source = self._sources[number]
        becomes: Listed = [["note", [number], version]]
        operation = self.begin("note", becomes, sources={number: source})
        with self._held([] if source is None else [source]):
            is_new = await self.store.documents.write_note(invented.note(number, version, source))
        if not is_new:
            raise Wrong(f"note {number} was known in version {version}")
        self.done(operation, becomes)

    async def embed(self) -> None:
        """What waits for a vector gets one."""
        if not (waiting := await self.store.vectors.queued(40)):
            return
        operation = self.begin("embed", [], embeds=[item.number for item in waiting if item.kind == "event"])
        await self.store.vectors.put(self.space, [(item, self._codes(item)) for item in waiting])
        self.done(operation, [])

    async def forget(self) -> None:
        """Some events, of any tier, are forgotten for good, with the notes that were written in them."""
        async with self._one_forgets:
            going = self.some(self.free("event"), 40)
            notes = [number for number, source in self._sources.items() if source in going]
            if not going or not set(notes) <= set(self.free("note")):
                return
            becomes: Listed = [["event", going, FORGOTTEN], ["note", notes, ABSENT]]
            operation = self.begin("forget", becomes, is_whole=False)
            await self.store.forgetting.delete(Selection(ids=_ids(going)))
            await self.store.forgetting.erase()
            await self.store.forgetting.settle()
            if await self.store.events.append(invented.event(going[0])):
                raise Wrong(f"event {going[0]} was forgotten and could be stored again")
            for note in notes:
                del self._sources[note]
            self.done(operation, becomes)

    @contextmanager
    def _held(self, events: Iterable[int]) -> Iterator[None]:
        """Keep others from events that are not changed themselves."""
        held = {("event", number) for number in events}
        self._busy |= held
        yield
        self._busy -= held

    def _codes(self, item: ToEmbed) -> dict[str, bytes]:
        return {part: invented.code(self.space, item.kind, item.number, part) for part in item.parts}


def _is_there(state: State) -> bool:
    return state not in (ABSENT, FORGOTTEN)


def _ids(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(invented.event_id, numbers))


OPERATIONS: dict[str, tuple[Callable[[Work], Awaitable[None]], int]] = {
    "append": (Work.append, 8),
    "import": (Work.bring_in, 2),
    "archive": (Work.archive, 4),
    "return": (Work.bring_back, 4),
    "note": (Work.write_note, 3),
    "embed": (Work.embed, 3),
    "forget": (Work.forget, 1),
}
"""What a workload does, and how often beside the others."""


async def work(work: Work) -> None:
    """Do one thing after another, for ever."""
    kinds = list(OPERATIONS)
    weights = [weight for _, weight in OPERATIONS.values()]
    while True:
        (kind,) = work.dice.choices(kinds, weights)
        await OPERATIONS[kind][0](work)
        await asyncio.sleep(0)
