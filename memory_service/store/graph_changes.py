"""Changes of the graph, inside the caller's transaction; each touches only what the asker may see."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

import apsw

from homeagent_sdk.errors import Invalid, NotFound
from memory_service.graph.model import Changed, Corrected, Correction, Criteria, Fact, Relation, Telling
from memory_service.graph.names import clean, key_of, problem_with_name, problem_with_type
from memory_service.store import forget_rows, graph_rows, scene_rows
from memory_service.store.graph_commit import Place, put
from memory_service.store.graph_rows import IN, Sight, about, relations_of

_EXAMPLES = 5
_HOLDING = "r.status = 'active'"


def merge(connection: apsw.Connection, source: str, target: str, audience: Collection[str]) -> Changed:
    """Make two entities one; see :meth:`memory_service.store.abc.GraphStore.merge`."""
    sight = Sight.of(connection, audience)
    old, new = key_of(source), key_of(target)
    if old == new:
        raise Invalid(f"{clean(source)} and {clean(target)} are the same name already", field="target")
    for field, name in (("source", source), ("target", target)):
        _must_be_known(connection, name, sight, field)
    shown = _shown(connection, new, sight)
    moved: list[Relation] = []
    dropped: list[int] = []
    for number, of in list(
        connection.execute(f"SELECT e.number, e.audience FROM entity e WHERE e.key = ? {sight.on('e')}", (old,))
    ):
        into = graph_rows.entity(connection, of, shown)
        touched = relations_of(connection, "(r.subject = ?1 OR r.object = ?1)", [number])
        moved += [relation for relation in touched if relation.status != "deleted"]
        dropped += _redirect(connection, touched, number, into)
        connection.execute(
            "UPDATE media_block SET holder = ? WHERE holder_kind = 'entity' AND holder = ?", (into, number)
        )
        graph_rows.drop_unused(connection, [number])
    _end(connection, dropped)
    ended = set(dropped)
    graph_rows.index(connection, [relation.number for relation in moved if relation.number not in ended])
    return Changed(len(moved), len(dropped), 1, _examples(moved))


def edit(connection: apsw.Connection, correction: Correction, telling: Telling, audience: Collection[str]) -> Corrected:
    """Let facts take the place of others; see :meth:`memory_service.store.abc.GraphStore.edit`."""
    sight = Sight.of(connection, audience)
    subject, type, object = map(key_of, correction.old)
    wanted = _wanted(correction)
    says = "s.key = ? AND r.type = ? AND o.key = ?"
    old = relations_of(connection, f"{says} AND {_HOLDING} {sight.on('r')}", [subject, type, object])
    if not old:
        done = _done_before(connection, (subject, type, object), wanted, sight)
        if done:
            return Corrected(tuple(done), is_new=False)
        raise NotFound(
            f"there is no fact {' '.join(map(clean, correction.old))}",
            field="old_object",
            hint="recall it first, and give its three parts as they are written there",
        )
    if (key_of(wanted[0]), key_of(wanted[1]), key_of(wanted[2])) == (subject, type, object):
        return _respelled(connection, old, wanted)
    return Corrected(tuple(_replaced(connection, each, wanted, telling) for each in old), is_new=True)


def delete_entity(connection: apsw.Connection, name: str, audience: Collection[str], *, hard: bool) -> Changed:
    """Delete all facts about an entity; see :meth:`memory_service.store.abc.GraphStore.delete_entity`."""
    sight, key = Sight.of(connection, audience), key_of(name)
    which = f"{about(sight)} {sight.on('r')} AND {_which(hard)}"
    relations = relations_of(connection, which, [json.dumps([key])])
    if not relations:
        raise NotFound(f"there is no entity {clean(name)}", field="name", hint="its name must be exact")
    media = list(connection.execute(f"SELECT e.number FROM entity e WHERE e.key = ? {sight.on('e')}", (key,)))
    if hard:
        forget_rows.media_of_entities(connection, [number for (number,) in media])
    return _deleted(connection, relations, hard=hard)


def purge(connection: apsw.Connection, criteria: Criteria, audience: Collection[str], *, hard: bool) -> Changed:
    """Delete facts by what they say; see :meth:`memory_service.store.abc.GraphStore.purge`."""
    sight = Sight.of(connection, audience)
    conditions: list[str] = []
    values: list[object] = []
    for condition, value in (
        ("s.key = ?", criteria.subject),
        ("r.type = ?", criteria.type),
        ("o.key = ?", criteria.object),
        # Not LIKE: no character of the text means anything but itself.
        ("instr(s.key, ?) > 0", criteria.subject_contains),
        ("instr(o.key, ?) > 0", criteria.object_contains),
    ):
        if value is not None:
            if not key_of(value):
                raise Invalid("an empty text would match every fact", field="criteria")
            conditions.append(condition)
            values.append(key_of(value))
    if not conditions:
        raise Invalid("say which facts to delete", field="criteria", hint="give a subject, a relation or an object")
    which = f"{' AND '.join(conditions)} {sight.on('r')} AND {_which(hard)}"
    return _deleted(connection, relations_of(connection, which, values), hard=hard)


def _which(hard: bool) -> str:
    """For good goes also what was deleted from sight before."""
    return "TRUE" if hard else "r.status <> 'deleted'"


def _deleted(connection: apsw.Connection, relations: Sequence[Relation], *, hard: bool) -> Changed:
    numbers = [relation.number for relation in relations]
    ends = _ends(connection, numbers)
    before = _in_sight(connection, ends)
    _end(connection, numbers)
    if hard:
        # What they had replaced stays replaced: it was not true any more.
        connection.execute(f"UPDATE relation SET superseded_by = NULL WHERE superseded_by {IN}", (json.dumps(numbers),))
        forget_rows.relations(connection, numbers)
    return Changed(len(relations), len(relations), before - _in_sight(connection, ends), _examples(relations))


def _end(connection: apsw.Connection, numbers: Collection[int]) -> None:
    connection.execute(f"UPDATE relation SET status = 'deleted' WHERE number {IN}", (json.dumps(list(numbers)),))
    graph_rows.unindex(connection, numbers)
    connection.execute(f"DELETE FROM scene_member WHERE kind = 'relation' AND item {IN}", (json.dumps(list(numbers)),))


def _redirect(connection: apsw.Connection, touched: Iterable[Relation], number: int, into: int) -> list[int]:
    """Let relations have another end; returns those that say nothing new thereby."""
    dropped: list[int] = []
    for relation in touched:
        subject, type, object = connection.execute(
            "SELECT subject, type, object FROM relation WHERE number = ?", (relation.number,)
        ).get
        ends = (into if subject == number else subject, into if object == number else object)
        status = relation.status
        if status == "active" and ends[0] == ends[1]:
            status = "deleted"
            dropped.append(relation.number)
        elif status == "active" and (double := graph_rows.active(connection, ends[0], type, ends[1])) is not None:
            kept, lost = sorted((double, relation.number))
            scene_rows.pass_on(connection, "relation", lost, kept)
            dropped.append(lost)
            if lost == relation.number:
                status = "deleted"
            else:
                connection.execute("UPDATE relation SET status = 'deleted' WHERE number = ?", (lost,))
        connection.execute(
            "UPDATE relation SET subject = ?, object = ?, status = ? WHERE number = ?",
            (*ends, status, relation.number),
        )
    return dropped


def _wanted(correction: Correction) -> tuple[str, str, str]:
    pairs = zip(correction.old, correction.new, strict=True)
    subject, type, object = (old if new is None else new for old, new in pairs)
    for field, problem in (
        ("new_subject", problem_with_name(subject)),
        ("new_relation", problem_with_type(type)),
        ("new_object", problem_with_name(object)),
    ):
        if problem is not None:
            raise Invalid(f"{field} {problem}", field=field)
    if key_of(subject) == key_of(object):
        raise Invalid("the object would be the subject itself", field="new_object")
    return subject, type, object


def _replaced(
    connection: apsw.Connection, old: Relation, wanted: tuple[str, str, str], telling: Telling
) -> tuple[Relation, Relation]:
    """Store what holds now, with what is known of the old fact, and end that one."""
    audience = int(connection.execute("SELECT audience FROM relation WHERE number = ?", (old.number,)).get)
    fact = Fact(
        subject=wanted[0],
        type=wanted[1],
        object=wanted[2],
        sentence=old.sentence,
        confidence=old.confidence,
        subject_type=old.subject_type if key_of(wanted[0]) == key_of(old.subject) else "",
        object_type=old.object_type if key_of(wanted[2]) == key_of(old.object) else "",
    )
    place = Place(audience, telling, lambda source: True)
    number, is_new = put(connection, fact, place, telling.source, telling.time, may_hold_again=True)
    if is_new:
        graph_rows.index(connection, [number] if number is not None else [])
    (new,) = relations_of(connection, "r.number = ?", [number])
    connection.execute(
        "UPDATE relation SET status = 'superseded', valid_to = ?, superseded_by = ? WHERE number = ?",
        (telling.time, new.number, old.number),
    )
    scene_rows.pass_on(connection, "relation", old.number, new.number)
    return old, new


def _done_before(
    connection: apsw.Connection, old: tuple[str, str, str], wanted: tuple[str, str, str], sight: Sight
) -> list[tuple[Relation, Relation]]:
    replaced = relations_of(
        connection,
        f"s.key = ? AND r.type = ? AND o.key = ? AND r.status = 'superseded' {sight.on('r')}",
        list(old),
    )
    pairs = []
    for each in replaced:
        new = relations_of(
            connection,
            f"r.number = (SELECT superseded_by FROM relation WHERE number = ?) AND {_HOLDING}"
            " AND s.key = ? AND r.type = ? AND o.key = ?",
            [each.number, *map(key_of, wanted)],
        )
        pairs += [(each, now) for now in new]
    return pairs


def _respelled(connection: apsw.Connection, old: Sequence[Relation], wanted: tuple[str, str, str]) -> Corrected:
    """The same fact by its keys: at most its names are written otherwise now."""
    names = [(clean(wanted[0]), "subject"), (clean(wanted[2]), "object")]
    for relation in old:
        for name, end in names:
            connection.execute(
                f"UPDATE entity SET name = ? WHERE number = (SELECT {end} FROM relation WHERE number = ?)",
                (name, relation.number),
            )
    pairs = tuple((each, relations_of(connection, "r.number = ?", [each.number])[0]) for each in old)
    return Corrected(pairs, is_new=any(before != after for before, after in pairs))


def _must_be_known(connection: apsw.Connection, name: str, sight: Sight, field: str) -> None:
    question = f"SELECT 1 FROM relation r WHERE {about(sight)} AND {_HOLDING} {sight.on('r')} LIMIT 1"
    if connection.execute(question, (json.dumps([key_of(name)]),)).get is None:
        raise NotFound(f"there is no entity {clean(name)}", field=field, hint="its name must be exact; recall it first")


def _shown(connection: apsw.Connection, key: str, sight: Sight) -> str:
    """Return how a name is written."""
    question = f"SELECT e.name FROM entity e WHERE e.key = ? {sight.on('e')} ORDER BY e.number LIMIT 1"
    return str(connection.execute(question, (key,)).get)


def _ends(connection: apsw.Connection, relations: Sequence[int]) -> str:
    numbers = json.dumps(relations)
    question = f"SELECT subject FROM relation WHERE number {IN} UNION SELECT object FROM relation WHERE number {IN}"
    return json.dumps([number for (number,) in connection.execute(question, (numbers, numbers))])


def _in_sight(connection: apsw.Connection, entities: str) -> int:
    """Count those of the entities of which a relation speaks that holds."""
    question = (
        f"SELECT count(*) FROM entity e WHERE e.number {IN} AND EXISTS (SELECT 1 FROM relation r"
        f" WHERE {_HOLDING} AND (r.subject = e.number OR r.object = e.number))"
    )
    return int(connection.execute(question, (entities,)).get)


def _examples(relations: Sequence[Relation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(relation.statement for relation in relations))[:_EXAMPLES]
