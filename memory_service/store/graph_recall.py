"""Questions to the graph: names first, then words, then along the relations; only what the asker may see.

Every statement here has the condition of visibility on the relation. An entity has none of its own: it is seen through
its relations or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import apsw

from memory_service.graph.model import (
    RECENT,
    FactCandidate,
    GraphQuestion,
    GraphStats,
    Recollection,
    Relation,
    Snapshot,
)
from memory_service.graph.names import key_of, specific
from memory_service.model import Term
from memory_service.store.frequencies import frequencies_in, worth_asking
from memory_service.store.graph_rows import COLUMNS, ENDS, IN, Sight, about, relation_from, relations_of
from memory_service.words.tokenizer import match_phrase

_WEIGHTS = "bm25(2.0, 1.0, 2.0, 1.0)"
"""What a word counts in the subject, the type, the object and the sentence of a fact."""

_NAMED = (1.0, 0.6, 0.3)
"""What it counts that a name is what was asked for, begins with it, or contains it; beside words, which count 0…1."""

_PER_KEYWORD = 50
_MAX_SCANS = 16
"""For so many keywords every name is looked through; the others must be how a name begins."""

_PER_PLACE = 3
_MAX_KEYWORDS = 64
_MAX_AT_ONCE = 500
_MAX_EXPANDED = 2_000
"""So many relations at most are followed from one level to the next, and altogether."""

_WORDS_FOUND = 40
_MOST_FORMER = 3
_BUSIEST = 10


@dataclass(slots=True)
class _Found:
    relation: Relation
    score: float


@dataclass(slots=True)
class _Walk:
    """What was reached so far: relations by number, and entities by key with what they count."""

    relations: dict[int, _Found] = field(default_factory=dict)
    reached: dict[str, float] = field(default_factory=dict)

    def add(self, relation: Relation, score: float) -> None:
        found = self.relations.setdefault(relation.number, _Found(relation, 0.0))
        found.score = max(found.score, score)


def recall(connection: apsw.Connection, question: GraphQuestion, audience: Collection[str] | None) -> Recollection:
    """Answer a question; see :meth:`memory_service.store.abc.GraphStore.recall`."""
    sight = Sight.of(connection, audience)
    walk = _Walk()
    ranks = _named(connection, question, sight)
    _expand(connection, walk, {key: _NAMED[rank] for key, rank in ranks.items()}, question, sight)
    _add_by_words(connection, walk, question, sight)
    kept = sorted(walk.relations.values(), key=_by_relevance)
    if question.sort == RECENT:
        # Of what belongs to the question, the newest; not just anything that is new.
        kept = sorted(kept[: _PER_PLACE * question.relations], key=_by_time)
    relations = tuple(each.relation for each in kept[: question.relations])
    return Recollection(
        relations=relations,
        former=_former(connection, relations, sight),
        entities=_entities(kept, ranks, question.entities),
        is_named=any(rank < 2 for rank in ranks.values()),
        omitted=len(walk.relations) - len(relations),
    )


def find(
    connection: apsw.Connection, terms: Sequence[Term], audience: Collection[str] | None, limit: int
) -> tuple[FactCandidate, ...]:
    """Find facts by words; see :meth:`memory_service.store.abc.GraphStore.find_facts`."""
    return _by_words(connection, terms, Sight.of(connection, audience), limit)


def by_number(
    connection: apsw.Connection, numbers: Collection[int], audience: Collection[str] | None
) -> dict[int, Relation]:
    """Return facts that hold; see :meth:`memory_service.store.abc.GraphStore.facts_by_number`."""
    sight = Sight.of(connection, audience)
    chosen = json.dumps(list(numbers))
    found = relations_of(connection, f"r.number {IN} AND r.status = 'active' {sight.on('r')}", [chosen])
    return {relation.number: relation for relation in found}


def snapshot(connection: apsw.Connection, name: str, audience: Collection[str] | None, limit: int) -> Snapshot | None:
    """Say what is on record of an entity; see :meth:`memory_service.store.abc.GraphStore.snapshot`."""
    sight, key = Sight.of(connection, audience), key_of(name)
    found = relations_of(connection, f"{about(sight)} AND r.status = 'active' {sight.on('r')}", [json.dumps([key])])
    if not found:
        return None
    newest = found[::-1][:limit]
    shown = next(end for end in (newest[0].subject, newest[0].object) if key_of(end) == key)
    return Snapshot(shown, "\n".join(each.text for each in newest), tuple(each.id for each in newest))


def stats(connection: apsw.Connection, audience: Collection[str] | None) -> GraphStats:
    """Count what an audience can see; see :meth:`memory_service.store.abc.GraphStore.introspect`."""
    condition = Sight.of(connection, audience).on("r")
    counts = dict(
        connection.execute(f"SELECT r.status, count(*) FROM relation r WHERE TRUE {condition} GROUP BY r.status")
    )
    ends = (
        "SELECT e.key, max(e.name) AS name, count(*) AS degree FROM ("
        f"SELECT r.subject AS entity FROM relation r WHERE r.status = 'active' {condition} UNION ALL"
        f" SELECT r.object FROM relation r WHERE r.status = 'active' {condition})"
        " JOIN entity e ON e.number = entity GROUP BY e.key"
    )
    busiest = list(
        connection.execute(
            f"SELECT name, degree, count(*) OVER () FROM ({ends}) ORDER BY degree DESC, key LIMIT {_BUSIEST}"
        )
    )
    return GraphStats(
        busiest=tuple((name, degree) for name, degree, _ in busiest),
        entities=busiest[0][2] if busiest else 0,
        relations=counts.get("active", 0),
        superseded=counts.get("superseded", 0),
    )


def _keywords(question: GraphQuestion) -> list[tuple[str, str]]:
    """Return the names to look for, each with the condition on an entity's key ``e.key``, the name being ``?1``.

    What was given may also be inside a name; of the words of the question, a name must begin with one.
    """
    given = dict.fromkeys(filter(None, map(key_of, question.keywords)))
    words = dict.fromkeys(key_of(term.text) for term in question.terms if term.is_word)
    chosen = set(specific([*given, *words]))
    keys = [(key, _condition(key, may_be_inside=place < _MAX_SCANS)) for place, key in enumerate(given)]
    keys += [(key, _condition(key, may_be_inside=False)) for key in words if key not in given]
    return [each for each in keys if each[0] in chosen][:_MAX_KEYWORDS]


def _condition(key: str, *, may_be_inside: bool) -> str:
    is_ascii = key.isascii()
    if len(key) < (3 if is_ascii else 2):
        return "e.key = ?1"
    if may_be_inside:
        return "instr(e.key, ?1) > 0"
    # Written without spaces, a word need not end where a name goes on.
    return (
        "e.key = ?1 OR (e.key > ?1 || ' ' AND e.key < ?1 || '!')"
        if is_ascii
        else "e.key >= ?1 AND e.key < ?1 || char(1114111)"
    )


def _named(connection: apsw.Connection, question: GraphQuestion, sight: Sight) -> dict[str, int]:
    """Return the entities that are named: their keys with 0 for exact, 1 for the beginning, 2 for a part."""
    exists = (
        "EXISTS (SELECT 1 FROM relation r WHERE (r.subject = e.number OR r.object = e.number)"
        f" AND r.status = 'active' {sight.on('r')} AND (?2 IS NULL OR r.session = ?2))"
    )
    ranks: dict[str, int] = {}
    for key, condition in _keywords(question):
        found = connection.execute(
            "SELECT e.key, CASE WHEN e.key = ?1 THEN 0 WHEN instr(e.key, ?1) = 1 THEN 1 ELSE 2 END AS rank"
            f" FROM entity e WHERE ({condition}) {sight.on('e')} AND {exists}"
            f" ORDER BY rank, e.number DESC, length(e.key) LIMIT {_PER_KEYWORD}",
            (key, question.session),
        )
        for name, rank in found:
            ranks[name] = min(rank, ranks.get(name, rank))
    return ranks


def _expand(
    connection: apsw.Connection,
    walk: _Walk,
    named: dict[str, float],
    question: GraphQuestion,
    sight: Sight,
) -> None:
    """Go along the relations, each level from what the one before it reached for the first time."""
    frontier = walk.reached = dict(named)
    for level in range(1, question.depth + 1):
        room = min(_MAX_AT_ONCE, _MAX_EXPANDED - len(walk.relations))
        if not frontier or room <= 0:
            return
        reached: dict[str, float] = {}
        for relation in _adjacent(connection, frontier, question, sight, room):
            ends = (key_of(relation.subject), key_of(relation.object))
            score = max(frontier.get(end, 0.0) for end in ends)
            walk.add(relation, score / level)
            for end in ends:
                if end not in walk.reached:
                    reached[end] = max(score, reached.get(end, 0.0))
        walk.reached |= reached
        frontier = reached


def _adjacent(
    connection: apsw.Connection,
    frontier: Collection[str],
    question: GraphQuestion,
    sight: Sight,
    limit: int,
) -> list[Relation]:
    order = "r.valid_from DESC" if question.sort == RECENT else "r.confidence DESC"
    found = connection.execute(
        f"SELECT {COLUMNS} FROM relation r {ENDS} WHERE {about(sight)} AND r.status = 'active' {sight.on('r')}"
        f" AND (?2 IS NULL OR r.session = ?2) ORDER BY {order}, r.number DESC LIMIT ?3",
        (json.dumps(list(frontier)), question.session, limit),
    )
    return list(map(relation_from, found))


def _add_by_words(connection: apsw.Connection, walk: _Walk, question: GraphQuestion, sight: Sight) -> None:
    """Add what has words of the question; nothing is followed from there: it need not be what was meant."""
    found = _by_words(connection, question.terms, sight, _WORDS_FOUND)
    if question.session is not None:
        found = tuple(each for each in found if each.relation.session == question.session)
    best = max((each.relevance for each in found), default=0.0)
    for each in found:
        known = walk.relations.get(each.number)
        walk.add(each.relation, (known.score if known else 0.0) + (each.relevance / best if best else 0.0))


def _by_words(
    connection: apsw.Connection, terms: Sequence[Term], sight: Sight, limit: int
) -> tuple[FactCandidate, ...]:
    asked = worth_asking(frequencies_in(connection, "relation_vocabulary", terms))
    if not asked:
        return ()
    found = connection.execute(
        f"SELECT rank, matched_terms(relation_words), {COLUMNS} FROM relation_words"
        f" JOIN relation r ON r.number = relation_words.rowid {ENDS}"
        f" WHERE relation_words MATCH ? AND rank MATCH '{_WEIGHTS}' AND r.status = 'active' {sight.on('r')}"
        " ORDER BY rank, r.number DESC LIMIT ?",
        (" OR ".join(match_phrase(terms[index].tokens) for index in asked), limit),
    )
    candidates = []
    for relevance, matched, *row in found:
        relation = relation_from(tuple(row))
        phrases = frozenset(asked[int(phrase)] for phrase in matched.split())
        candidates.append(FactCandidate(relation, -relevance, phrases, relation.number))
    return tuple(candidates)


def _former(
    connection: apsw.Connection, relations: Sequence[Relation], sight: Sight
) -> dict[str, tuple[Relation, ...]]:
    successors = dict(
        connection.execute(
            f"SELECT number, superseded_by FROM relation WHERE superseded_by {IN}",
            (json.dumps([relation.number for relation in relations]),),
        )
    )
    if not successors:
        return {}
    ids = {relation.number: relation.id for relation in relations}
    former: dict[str, tuple[Relation, ...]] = {}
    replaced = relations_of(
        connection,
        f"r.number {IN} AND r.status = 'superseded' {sight.on('r')}",
        [json.dumps(list(successors))],
    )
    for each in reversed(replaced):
        of = ids[successors[each.number]]
        former[of] = (*former.get(of, ()), each)[:_MOST_FORMER]
    return former


def _entities(found: Sequence[_Found], ranks: dict[str, int], limit: int) -> tuple[str, ...]:
    names: dict[str, str] = {}
    degree: dict[str, int] = {}
    for each in found:
        for name in (each.relation.subject, each.relation.object):
            key = key_of(name)
            names.setdefault(key, name)
            degree[key] = degree.get(key, 0) + 1
    order = sorted(names, key=lambda key: (ranks.get(key, len(_NAMED)), -degree[key], len(key), key))
    return tuple(names[key] for key in order[:limit])


def _by_relevance(found: _Found) -> tuple[float, float, int]:
    return -found.score, -found.relation.confidence, -found.relation.number


def _by_time(found: _Found) -> tuple[float, int]:
    # Within a second, and for events told at once, what was stored later is newer.
    return -found.relation.valid_from, -found.relation.number
