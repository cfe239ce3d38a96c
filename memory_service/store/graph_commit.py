"""Facts on their way into the graph: checked, then stored once each, inside the caller's transaction."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import apsw

from homeagent_sdk.errors import Conflict, NotFound
from memory_service.graph.model import RULE, Committed, Fact, Refused, Telling
from memory_service.graph.names import (
    clean,
    is_noise,
    key_of,
    problem_with_name,
    problem_with_sentence,
    problem_with_type,
)
from memory_service.graph.scene_keys import problem_with_key
from memory_service.store import graph_rows, scene_rows
from memory_service.store.audiences import HOUSEHOLD, intern, members

_INSERT = """
    INSERT INTO relation (id, subject, type, object, audience, principal, confidence, valid_from, created, origin,
        session, source, source_event, sentence)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where facts are put.

    :ivar audience: number of who may see them
    :ivar may_come_from: whether a fact may have come from this source
    """

    audience: int
    telling: Telling
    may_come_from: Callable[[str | None], bool]


def commit(connection: apsw.Connection, facts: Sequence[Fact], telling: Telling) -> Committed:
    """Store facts; see :meth:`memory_service.store.abc.GraphStore.commit`."""
    audience = intern(connection, telling.visible_to, telling.shared)
    return _store(connection, facts, Place(audience, telling, lambda id: not _is_forgotten(connection, id)))


def to_graph(connection: apsw.Connection, document: str, facts: Sequence[Fact]) -> Committed:
    """Move a document into the graph; see :meth:`memory_service.store.abc.GraphStore.to_graph`."""
    row = connection.execute(
        "SELECT number, audience, principal, first_time, kind, tier FROM document WHERE id = ?", (document,)
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no document {document}", field="document")
    number, audience, principal, first_time, kind, tier = row
    times = dict(connection.execute("SELECT id, time FROM event WHERE document = ?", (number,)))
    telling = Telling(
        principal=principal,
        visible_to=members(connection, audience),
        shared=audience == HOUSEHOLD,
        time=first_time,
        origin=RULE,
        # A note is its own source, so that its facts are forgotten with it; those of an archive are its events'.
        source=document if kind == "note" else None,
    )
    place = Place(audience, telling, lambda id: id in times or (kind == "note" and id == document))
    stored = _store(connection, facts, place, times)
    if tier != "graph" and not (stored.new or stored.known):
        raise Conflict(
            f"none of {len(facts)} facts of document {document} can be stored, so it stays a document",
            field="facts",
            hint="; ".join(f"facts.{each.index}.{each.field} {each.reason}" for each in stored.refused[:3]) or None,
        )
    connection.execute("UPDATE document SET tier = 'graph' WHERE number = ?", (number,))
    connection.execute("UPDATE event SET tier = 'graph' WHERE document = ?", (number,))
    return stored


def _store(
    connection: apsw.Connection, facts: Sequence[Fact], place: Place, times: dict[str, float] | None = None
) -> Committed:
    new: dict[int, None] = {}
    known: dict[int, None] = {}
    refused: list[Refused] = []
    for index, fact in enumerate(facts):
        refusal = next(_problems(fact, place), None)
        if refusal is not None:
            refused.append(Refused(index, *refusal))
            continue
        source = fact.source or place.telling.source
        moment = (times or {}).get(source or "", place.telling.time)
        number, is_new = put(connection, fact, place, source, moment)
        if number is None:
            refused.append(Refused(index, "object", "was replaced in this same turn; correct the fact that holds now"))
        elif is_new:
            new[number] = None
        elif number not in new:
            known[number] = None
    graph_rows.index(connection, new)
    return Committed(_ids(connection, new), _ids(connection, known), tuple(refused))


def put(
    connection: apsw.Connection,
    fact: Fact,
    place: Place,
    source: str | None,
    moment: float,
    *,
    may_hold_again: bool = False,
) -> tuple[int | None, bool]:
    """Store a fact that has been checked, if nothing says the same yet; a new one is still to be indexed.

    :param moment: since when it holds
    :param may_hold_again: even if this very telling has been replaced
    :returns: the number of the relation that says it, None if this very telling has been replaced; whether it is new
    """
    subject = graph_rows.entity(connection, place.audience, fact.subject, fact.subject_type)
    object = graph_rows.entity(connection, place.audience, fact.object, fact.object_type)
    type = key_of(fact.type)
    number = graph_rows.active(connection, subject, type, object)
    is_new = number is None
    if number is None:
        id = relation_id(fact, members(connection, place.audience), source)
        old = connection.execute("SELECT number, status FROM relation WHERE id = ?", (id,)).fetchone()
        if old is None:
            number = _insert(connection, (id, subject, type, object), fact, place, source, moment)
        elif old[1] == "superseded" and not may_hold_again:
            graph_rows.drop_unused(connection, [subject, object])
            return None, False
        else:
            number = int(old[0])
            connection.execute(
                "UPDATE relation SET status = 'active', valid_to = NULL, superseded_by = NULL, subject = ?, object = ?"
                " WHERE number = ?",
                (subject, object, number),
            )
    for key in fact.scenes:
        scene = scene_rows.declare(connection, place.audience, key, time.time())
        scene_rows.join(connection, scene, "relation", number, fact.confidence, time.time())
    return number, is_new


def relation_id(fact: Fact, visible_to: Sequence[str], source: str | None) -> str:
    """Return the id of a fact: the same if the same is told again in the same turn or, without one, word for word."""
    parts = [key_of(fact.subject), key_of(fact.type), key_of(fact.object), list(visible_to), source, fact.sentence]
    if source is not None:
        parts[-1] = ""
    return f"fact-{hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:32]}"


def _insert(
    connection: apsw.Connection,
    key: tuple[str, int, str, int],
    fact: Fact,
    place: Place,
    source: str | None,
    moment: float,
) -> int:
    telling = place.telling
    event = connection.execute("SELECT number FROM event WHERE id = ?", (source,)).get
    connection.execute(
        _INSERT,
        (
            *key,
            place.audience,
            telling.principal,
            fact.confidence,
            moment,
            time.time(),
            telling.origin,
            telling.session,
            source,
            event,
            fact.sentence.strip(),
        ),
    )
    return connection.last_insert_rowid()


def _ids(connection: apsw.Connection, numbers: Iterable[int]) -> tuple[str, ...]:
    question = f"SELECT id FROM relation WHERE number {graph_rows.IN} ORDER BY number"
    return tuple(id for (id,) in connection.execute(question, (json.dumps(list(numbers)),)))


def _problems(fact: Fact, place: Place) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a fact, field by field."""
    for field, problem in (
        ("subject", problem_with_name(fact.subject)),
        ("type", problem_with_type(fact.type)),
        ("object", problem_with_name(fact.object)),
        ("sentence", problem_with_sentence(fact.sentence)),
    ):
        if problem is not None:
            yield field, problem
    if key_of(fact.subject) == key_of(fact.object):
        yield "object", "is the subject itself"
    if not 0 <= fact.confidence <= 1:
        yield "confidence", "must be from 0 to 1"
    for field, name in (("subject", fact.subject), ("object", fact.object)):
        if place.telling.origin == RULE and is_noise(name):
            yield field, f"says nothing: {clean(name)}"
    for key in fact.scenes:
        if problem := problem_with_key(key):
            yield "scenes", problem
    if not place.may_come_from(fact.source or place.telling.source):
        yield "source", "is an event that was forgotten, or is not part of the document"


def _is_forgotten(connection: apsw.Connection, event: str | None) -> bool:
    return event is not None and bool(
        connection.execute("SELECT EXISTS (SELECT 1 FROM forgotten WHERE id = digest_of(?))", (event,)).get
    )
