"""What a workload does with a store: each operation is said before it begins, and again when it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memory_service.context.choice import Limits
from memory_service.context.window import ContextWindow, WindowRequest
from memory_service.graph.model import Correction, Holder
from memory_service.model import InContext, Selection
from tests.chaos.memory import invented
from tests.chaos.memory.ledger import ABSENT, CONTEXT, CORRECTED, DOCUMENT, FORGOTTEN, GRAPH, STORED, TOLD
from tests.chaos.memory.work import Listed, Work, Wrong


async def append(work: Work, number: int | None = None) -> None:
    """A turn is over; appended once more if ``number`` names one whose append was not acknowledged."""
    if number is None:
        (number,) = work.new("event")
        if work.dice.random() < 0.2:
            await _tell(work, number)
    becomes: Listed = [["event", [number], CONTEXT]]
    operation = work.begin("append", becomes)
    await work.store.events.append(invented.event(number))
    if (stored := await work.store.events.get([invented.event_id(number)])) != (invented.event(number),):
        raise Wrong(f"event {number} was acknowledged, and then read as {stored}")
    work.done(operation, becomes)


async def bring_in(work: Work) -> None:
    """A file is imported, of which a part is known already."""
    new = work.new("event", work.dice.randint(2, 70))
    known = work.some(work.free("event"), 5)
    becomes: Listed = [["event", new, CONTEXT]]
    operation = work.begin("import", becomes, is_whole=False)
    with work.held("event", known):
        stored = await work.store.events.append_many([invented.event(number) for number in [*known, *new]])
    if stored != len(new):
        raise Wrong(f"{stored} events were new, and not {len(new)}")
    work.done(operation, becomes)


async def archive(work: Work) -> None:
    """Some events leave the context."""
    if not (leaving := work.some(work.free("event", CONTEXT), 30)):
        return
    becomes: Listed = [["event", leaving, DOCUMENT]]
    operation = work.begin("archive", becomes)
    documents = await work.store.documents.archive(_ids(leaving), "ann")
    moved = sorted(invented.number_of(id) for document in documents for id in document.events)
    if moved != leaving:
        raise Wrong(f"{leaving} were to be archived, {moved} were")
    work.done(operation, becomes)


class _AnyLikeness:
    """Likes some events more than others, for no reason."""

    async def of(self, text: str, events: Sequence[InContext]) -> Mapping[int, float]:
        return {event.number: hash((text, event.id)) % 100 / 100 for event in events}


async def prune(work: Work) -> None:
    """A window is full, and what does not fit moves into documents, slice by slice; nobody else is at work."""
    person = work.dice.choice(invented.PEOPLE)
    own = [number for number in work.free("event", CONTEXT) if invented.event(number).principal == person]
    becomes: Listed = [["event", own, DOCUMENT]]
    operation = work.begin("prune", becomes, is_whole=False)
    window = await ContextWindow(work.store, _AnyLikeness()).make(  # type: ignore[arg-type]
        WindowRequest(
            lane=("webui", "c1"),
            principal=person,
            audience=(person,),
            query=f"where is the printer {operation}",
            kept=frozenset(),
            limits=Limits(budget_tokens=1_500, kept_tokens=0, max_events=20, protected=3),
        )
    )
    documents = await work.store.documents.get(window.documents)
    moved = sorted(invented.number_of(id) for document in documents for id in document.events)
    if len(moved) != window.archived or not set(moved) <= set(own):
        raise Wrong(f"{window.archived} events were to be pruned of {own}, {moved} were")
    stayed = sorted(set(own) - set(moved))
    work.done(operation, becomes, became=[["event", moved, DOCUMENT], ["event", stayed, CONTEXT]])


async def bring_back(work: Work) -> None:
    """Some events of documents return, from the graph too."""
    if not (returning := work.some(work.free("event", DOCUMENT, GRAPH), 30)):
        return
    becomes: Listed = [["event", returning, CONTEXT]]
    operation = work.begin("return", becomes)
    returned = await work.store.documents.bring_back(_ids(returning))
    if sorted(map(invented.number_of, returned)) != returning:
        raise Wrong(f"{returning} were to return, {returned} did")
    work.done(operation, becomes)


async def to_graph(work: Work) -> None:
    """A document moves into the graph, with facts that it speaks of."""
    if not (archived := work.free("event", DOCUMENT)):
        return
    (event,) = await work.store.events.get([invented.event_id(work.dice.choice(archived))])
    (document,) = await work.store.documents.get([event.document or ""]) or (None,)
    members = sorted(map(invented.number_of, document.events)) if document is not None else []
    if document is None or not set(members) <= set(work.free("event", DOCUMENT)):
        return
    (number,) = work.new("fact")
    work.sources["fact", number] = members[0]
    becomes: Listed = [["event", members, GRAPH], ["fact", [number], TOLD]]
    operation = work.begin("to graph", becomes)
    committed = await work.store.graph.to_graph(document.id, invented.facts(number, members[0]))
    if len(committed.new) != invented.fact_count(number):
        raise Wrong(f"of facts {number}: {committed}")
    work.done(operation, becomes)


async def tell(work: Work) -> None:
    """Facts are told, in a turn that is stored already, or in none."""
    await _tell(work, work.dice.choice([None, *work.free("event")[-5:]]))


async def _tell(work: Work, source: int | None) -> None:
    (number,) = work.new("fact")
    work.sources["fact", number] = source
    becomes: Listed = [["fact", [number], TOLD]]
    operation = work.begin("tell", becomes)
    with work.held("event", [] if source is None else [source]):
        committed = await work.store.graph.commit(invented.facts(number, source), invented.telling(number, source))
    if len(committed.new) != invented.fact_count(number):
        raise Wrong(f"of facts {number}: {committed}")
    work.done(operation, becomes)


async def correct(work: Work) -> None:
    """A fact is replaced by another."""
    if not (known := work.free("fact", TOLD)):
        return
    number = work.dice.choice(known)
    source = work.sources["fact", number]
    told = invented.telling(number, source)
    becomes: Listed = [["fact", [number], CORRECTED]]
    operation = work.begin("correct", becomes)
    with work.held("event", [] if source is None else [source]):
        fact = invented.facts(number, source)[0]
        correction = Correction((fact.subject, fact.type, fact.object), (None, None, invented.place(number, None)))
        corrected = await work.store.graph.edit(correction, told, told.visible_to or invented.PEOPLE)
    if not corrected.is_new or len(corrected.pairs) != 1:
        raise Wrong(f"fact {number} was to be corrected: {corrected}")
    work.done(operation, becomes)


async def write_note(work: Work) -> None:
    """A note is written, or written again."""
    known = work.free("note")
    if known and work.dice.random() < 0.4:
        number = work.dice.choice(known)
        version = int(work.state("note", number)) + 1
    else:
        (number,), version = work.new("note"), 1
        work.sources["note", number] = work.dice.choice([None, *work.free("event")[-5:]])
    source = work.sources["note", number]
    becomes: Listed = [["note", [number], version]]
    operation = work.begin("note", becomes)
    with work.held("event", [] if source is None else [source]):
        is_new = await work.store.documents.write_note(invented.note(number, version, source))
    if not is_new:
        raise Wrong(f"note {number} was known in version {version}")
    work.done(operation, becomes)


async def attach(work: Work) -> None:
    """A picture is stored with an event."""
    if not (events := work.free("event")):
        return
    (number,) = work.new("media")
    source = work.sources["media", number] = work.dice.choice(events)
    becomes: Listed = [["media", [number], STORED]]
    operation = work.begin("attach", becomes)
    with work.held("event", [source]):
        holder = Holder("event", invented.event_id(source))
        await work.store.media.put(invented.picture(number), "image/png", holder, invented.caption(number))
    work.done(operation, becomes)


async def embed(work: Work) -> None:
    """What waits for a vector gets one."""
    if not (waiting := await work.store.vectors.queued(40)):
        return
    operation = work.begin("embed", [], embeds=[item.number for item in waiting if item.kind == "event"])
    space = work.space
    await work.store.vectors.put(
        space,
        [(item, {part: invented.code(space, item.kind, item.number, part) for part in item.parts}) for item in waiting],
    )
    work.done(operation, [])


async def forget(work: Work) -> None:
    """Some events, of any tier, are forgotten for good, with what was told in them."""
    async with work.forgetting:
        going = work.some(work.free("event"), 40)
        told = {kind: work.told_in(kind, going) for kind in ("note", "fact", "media")}
        if not going or not all(work.is_free(kind, number) for kind, numbers in told.items() for number in numbers):
            return
        becomes: Listed = [["event", going, FORGOTTEN], *([kind, numbers, ABSENT] for kind, numbers in told.items())]
        operation = work.begin("forget", becomes, is_whole=False)
        await work.store.forgetting.delete(Selection(ids=_ids(going)))
        await finish_forgetting(work)
        if await work.store.events.append(invented.event(going[0])):
            raise Wrong(f"event {going[0]} was forgotten and could be stored again")
        for kind, numbers in told.items():
            for number in numbers:
                del work.sources[kind, number]
        work.done(operation, becomes)


async def finish_forgetting(work: Work) -> None:
    """Do what follows the deletion of rows, as a service also does at its start."""
    forgetting = work.store.forgetting
    if not await forgetting.is_settled():
        await work.store.media.discard(await forgetting.media())
        if await forgetting.erase():
            await forgetting.settle()


def _ids(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(invented.event_id, numbers))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of operation.

    :ivar weight: how often it is done beside the others
    :ivar alone: while nobody else is at work
    """

    do: Callable[[Work], Awaitable[None]]
    weight: int
    alone: bool = False


OPERATIONS = {
    "append": Kind(append, 8),
    "import": Kind(bring_in, 2),
    "archive": Kind(archive, 4),
    "prune": Kind(prune, 1, alone=True),
    "return": Kind(bring_back, 4),
    "to graph": Kind(to_graph, 3),
    "tell": Kind(tell, 3),
    "correct": Kind(correct, 2),
    "note": Kind(write_note, 3),
    "attach": Kind(attach, 2),
    "embed": Kind(embed, 3),
    "forget": Kind(forget, 1),
}
"""What a workload does, by name."""


_AIMED_AT = 12


async def keep_working(work: Work, aim: str) -> None:
    """Do one thing after another, for ever; most often what is aimed at."""
    kinds = list(OPERATIONS.values())
    weights = [_AIMED_AT if name == aim else kind.weight for name, kind in OPERATIONS.items()]
    while True:
        (kind,) = work.dice.choices(kinds, weights)
        async with work.gate.pass_through(alone=kind.alone):
            await kind.do(work)
        await asyncio.sleep(0)
