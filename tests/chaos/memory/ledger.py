"""What must be in the memory: everything that was acknowledged, and of what was not, all of it or nothing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from memory_service.model import Event
from tests.chaos.memory import invented
from tests.chaos.memory.inspection import Found, Row, digest
from tests.chaos.memory.old_database import written

ABSENT, FORGOTTEN = "absent", "forgotten"
CONTEXT, DOCUMENT, GRAPH = "in the context", "in a document", "in the graph"
TIERS = {"context": CONTEXT, "document": DOCUMENT, "graph": GRAPH}
TOLD, CORRECTED, STORED = "told", "corrected", "stored"
State = str | int
"""Where an event is, which version of a note there is, whether facts were told or corrected, media stored."""

Item = tuple[str, int]
"""``event``, ``note``, ``fact`` or ``media``, and its number."""

_GONE = ("media", ABSENT)


@dataclass(slots=True)
class Operation:
    """One that has begun.

    :ivar kind: what is done, as in :data:`tests.chaos.memory.operations.OPERATIONS`
    :ivar becomes: what each item is afterwards
    :ivar is_whole: all items change in one transaction, or none
    :ivar embedded: which events have a vector afterwards, by their number in the store
    """

    kind: str
    becomes: dict[Item, State]
    is_whole: bool
    embedded: set[int] = field(default_factory=set)


class Ledger:
    """Follows what a workload says, line by line, and compares it with what is found.

    :ivar begun: operations that have begun and were not acknowledged, by number
    """

    def __init__(self) -> None:
        self.begun: dict[int, Operation] = {}
        self._may_be: dict[Item, set[State]] = {}
        self._sources: dict[Item, int | None] = {}
        self._space: str | None = None
        self._embedded: set[int] = set()
        self._forgotten_media: set[int] = set()

    def count(self) -> Counter[State]:
        """Return how many events there are, by where they are."""
        states = (states for (kind, _), states in self._may_be.items() if kind == "event")
        return Counter(next(iter(each)) for each in states if len(each) == 1)

    def expect(self, numbers: range) -> None:
        """These events are stored already."""
        for number in numbers:
            self._may_be["event", number] = {CONTEXT}

    def follow(self, line: dict[str, Any]) -> None:
        """Take note of what the workload begins, or has finished."""
        if line["say"] == "begin":
            self._sources |= {(kind, number): source for kind, number, source in line["sources"]}
            operation = Operation(line["kind"], _items(line["becomes"]), line["is_whole"])
            operation.embedded = set(line.get("embeds", []))
            self.begun[line["operation"]] = operation
            for item, state in operation.becomes.items():
                self._may_be.setdefault(item, {ABSENT}).add(state)
        elif line["say"] == "space" and line["name"] != self._space:
            # Whoever changes the encoder needs new vectors.
            self._space, self._embedded = line["name"], set()
        elif line["say"] == "done":
            operation = self.begun.pop(line["operation"])
            became = _items(line["became"]) if "became" in line else operation.becomes
            for item, state in became.items():
                self._may_be[item] = {state}
            self._embedded |= operation.embedded
            self._forgotten_media |= {number for (kind, number), state in became.items() if (kind, state) == _GONE}

    def balance(self, found: Found) -> list[str]:
        """Compare, and take what is found for what is there from now on.

        :returns: what is wrong, in words; empty if all is well
        """
        seen = self._seen(found)
        problems = [
            f"{kind} {number} is {seen[kind, number]}, not {' or '.join(map(str, states))}"
            for (kind, number), states in self._may_be.items()
            if seen[kind, number] not in states
        ]
        problems += [f"{kind} {number} was never stored" for kind, number in seen.keys() - self._may_be.keys()]
        problems += self._halves(seen)
        problems += self._unlike(found, seen)
        waiting = {number for kind, number in found.queued if kind == "event"}
        problems += self._wrong_media(found)
        problems += [f"event number {number} has lost its vector" for number in sorted(self._embedded & waiting)]
        self._may_be = {item: {state} for item, state in seen.items()}
        self.begun.clear()
        return problems

    def _seen(self, found: Found) -> dict[Item, State]:
        seen: dict[Item, State] = {}
        for kind, number in self._may_be:
            is_forgotten = kind == "event" and digest(invented.event_id(number)) in found.forgotten
            seen[kind, number] = FORGOTTEN if is_forgotten else ABSENT
        for id, row in found.events.items():
            item = ("event", invented.number_of(id))
            if seen.get(item) == FORGOTTEN:
                seen[item] = "both forgotten and stored"
            else:
                seen[item] = TIERS[row[13]]
        for id, row in found.notes.items():
            seen["note", invented.number_of(id)] = int(row[6].split()[1])
        for row in found.media:
            seen["media", invented.number_of(row[0])] = STORED
        objects: dict[int, list[str]] = {}
        for row in found.relations.values():
            if row[4] == "active":
                objects.setdefault(invented.number_of(row[1]), []).append(row[3])
        return seen | {("fact", number): fact_state(number, json.dumps(each)) for number, each in objects.items()}

    def _halves(self, seen: dict[Item, State]) -> list[str]:
        problems = []
        for operation in self.begun.values():
            if operation.is_whole:
                happened = {seen[item] == state for item, state in operation.becomes.items()}
                if len(happened) > 1:
                    problems.append(f"half of {operation.kind} of {list(operation.becomes)[:5]} has happened")
        return problems

    def _wrong_media(self, found: Found) -> Iterator[str]:
        for caption, stored, holder in found.media:
            number = invented.number_of(caption)
            if stored != hashlib.sha256(invented.picture(number)).hexdigest():
                yield f"{caption} has other bytes than were stored"
            source = self._sources.get(("media", number))
            if source is None or holder != invented.event_id(source):
                yield f"{caption} belongs to {holder}, and not to event {source}"
        for number in self._forgotten_media:
            if hashlib.sha256(invented.picture(number)).hexdigest() in found.files:
                yield f"the bytes of media {number} are there, although they were forgotten"

    def _unlike(self, found: Found, seen: dict[Item, State]) -> list[str]:
        problems = []
        for id, row in found.events.items():
            if row[:13] != _event_row(invented.event(invented.number_of(id))):
                problems.append(f"{id} is not what was stored")
        for id, row in found.notes.items():
            number = invented.number_of(id)
            version = seen["note", number]
            assert isinstance(version, int)
            note = invented.note(number, version, self._sources.get(("note", number)))
            expected: Row = (
                note.id,
                note.principal,
                json.dumps(sorted(note.visible_to), ensure_ascii=False, separators=(",", ":")),
                int(note.shared),
                note.time,
                note.content,
                note.summary,
                json.dumps(note.tags, ensure_ascii=False),
                note.source_event,
            )
            if row[:9] != expected:
                problems.append(f"{id} is not what was stored: {row} instead of {expected}")
        for row in found.relations.values():
            source = self._sources.get(("fact", invented.number_of(row[1])))
            if row[2] != "is at" or row[5] != (None if source is None else invented.event_id(source)):
                problems.append(f"a fact is not what was told: {row}, in event {source}")
        return problems


def fact_state(number: int, objects: str) -> State:
    """Say what has become of the facts with a number.

    :param objects: of those that hold, as a JSON list
    """
    found = sorted(json.loads(objects))
    told = [invented.place(number, index) for index in range(invented.fact_count(number))]
    if found == sorted(told):
        return TOLD
    if found == sorted([invented.place(number, None), *told[1:]]):
        return CORRECTED
    return f"a part of what was told: {found}"


def _items(listed: list[list[Any]]) -> dict[Item, State]:
    return {(kind, number): state for kind, numbers, state in listed for number in numbers}


def _event_row(event: Event) -> Row:
    return (
        event.id,
        event.channel,
        event.conversation,
        event.principal,
        event.speaker,
        event.time,
        event.origin,
        json.dumps(sorted(event.visible_to), ensure_ascii=False, separators=(",", ":")),
        int(event.shared),
        json.dumps(event.tools_used, ensure_ascii=False),
        event.input,
        event.response,
        json.dumps([written(result) for result in event.tool_results], ensure_ascii=False),
    )
