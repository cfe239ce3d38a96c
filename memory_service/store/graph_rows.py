"""Facts as rows of the graph's tables, with their words beside them; all inside the caller's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import apsw

from memory_service.graph.model import Relation
from memory_service.graph.names import clean, key_of
from memory_service.store.audiences import seen_by
from memory_service.words.tokenizer import written

IN = "IN (SELECT value FROM json_each(?))"
ENDS = "JOIN entity s ON s.number = r.subject JOIN entity o ON o.number = r.object"
COLUMNS = (
    "r.id, r.number, s.name, r.type, o.name, s.type, o.type, r.status, r.principal, r.confidence, r.valid_from,"
    " r.valid_to, r.created, r.session, coalesce((SELECT e.id FROM event e WHERE e.number = r.source_event), r.source),"
    " r.sentence"
)

_SUCCESSORS = """
    WITH RECURSIVE later (number, sentence) AS (
        SELECT superseded_by, sentence FROM relation
        WHERE number IN (SELECT value FROM json_each(?1)) AND sentence <> '' AND superseded_by IS NOT NULL
        UNION
        SELECT r.superseded_by, later.sentence FROM relation r JOIN later ON later.number = r.number
        WHERE r.superseded_by IS NOT NULL)
    SELECT r.number FROM relation r JOIN later ON later.number = r.number AND later.sentence = r.sentence
    WHERE r.number NOT IN (SELECT value FROM json_each(?1))
"""
_PASS_ON = """
    UPDATE relation SET superseded_by = (SELECT n.superseded_by FROM relation n WHERE n.number = relation.superseded_by)
    WHERE superseded_by IN (SELECT value FROM json_each(?1)) AND EXISTS (
        SELECT 1 FROM relation n WHERE n.number = relation.superseded_by AND n.superseded_by IS NOT NULL)
"""
_WITHOUT_SUCCESSOR = """
    SELECT max(r.number) FROM relation r
    WHERE r.status = 'superseded' AND r.superseded_by IN (SELECT value FROM json_each(?1))
        AND r.number NOT IN (SELECT value FROM json_each(?1)) AND NOT EXISTS (
            SELECT 1 FROM relation a WHERE a.status = 'active' AND a.subject = r.subject AND a.type = r.type
            AND a.object = r.object AND a.number NOT IN (SELECT value FROM json_each(?1)))
    GROUP BY r.subject, r.type, r.object
"""


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody may see.

    :ivar audiences: their numbers; None for everything
    """

    audiences: tuple[int, ...] | None

    @classmethod
    def of(cls, connection: apsw.Connection, audience: Collection[str] | None) -> Self:
        """Return what every one of these principals may see; None: everything, which only an operator may ask for."""
        return cls(None if audience is None else tuple(seen_by(connection, audience)))

    def on(self, table: str) -> str:
        """Return the condition that keeps out all else."""
        return "" if self.audiences is None else f"AND {table}.audience IN ({', '.join(map(str, self.audiences))})"


def about(sight: Sight) -> str:
    """Return the condition that a relation ``r`` has an end among the keys in the JSON list ``?1``."""
    ends = f"SELECT e.number FROM entity e WHERE e.key IN (SELECT value FROM json_each(?1)) {sight.on('e')}"
    return (
        f"r.number IN (SELECT number FROM relation WHERE subject IN ({ends})"
        f" UNION SELECT number FROM relation WHERE object IN ({ends}))"
    )


def relation_from(row: tuple[Any, ...]) -> Relation:
    """Make a relation of a row with :data:`COLUMNS`."""
    return Relation(*row)


def relations_of(connection: apsw.Connection, condition: str, values: Sequence[object]) -> list[Relation]:
    """Return the relations for which a condition on ``r``, ``s`` and ``o`` holds, the newest last."""
    question = f"SELECT {COLUMNS} FROM relation r {ENDS} WHERE {condition} ORDER BY r.number"
    return list(map(relation_from, connection.execute(question, values)))


def entity(connection: apsw.Connection, audience: int, name: str, type: str = "") -> int:
    """Return the number of an audience's entity, making it if it is new; a type is kept if it had none."""
    key = key_of(name)
    found = connection.execute(
        "SELECT number, type FROM entity WHERE key = ? AND audience = ?", (key, audience)
    ).fetchone()
    if found is None:
        connection.execute(
            "INSERT INTO entity (key, audience, name, type, created) VALUES (?, ?, ?, ?, ?)",
            (key, audience, clean(name), type, time.time()),
        )
        return connection.last_insert_rowid()
    number, known_type = found
    if type and not known_type:
        connection.execute("UPDATE entity SET type = ? WHERE number = ?", (type, number))
    return int(number)


def active(connection: apsw.Connection, subject: int, type: str, object: int) -> int | None:
    """Return the number of the relation that says this and holds now."""
    number = connection.execute(
        "SELECT number FROM relation WHERE subject = ? AND type = ? AND object = ? AND status = 'active'",
        (subject, type, object),
    ).get
    return None if number is None else int(number)


def index(connection: apsw.Connection, numbers: Collection[int]) -> None:
    """Write the words of relations anew, and queue them for their vectors."""
    chosen = json.dumps(list(numbers))
    texts = list(
        connection.execute(
            f"SELECT r.number, s.name, r.type, o.name, r.sentence FROM relation r {ENDS} WHERE r.number {IN}", (chosen,)
        )
    )
    unindex(connection, numbers)
    connection.executemany(
        "INSERT INTO relation_words (rowid, subject, type, object, sentence) VALUES (?, ?, ?, ?, ?)",
        [(number, *map(written, words)) for number, *words in texts],
    )
    connection.executemany(
        "INSERT INTO embedding_queue (kind, item) VALUES ('relation', ?)", [(number,) for number, *_ in texts]
    )


def unindex(connection: apsw.Connection, numbers: Collection[int]) -> None:
    """Take relations out of every index, so that nothing finds them."""
    chosen = json.dumps(list(numbers))
    connection.execute(f"DELETE FROM relation_words WHERE rowid {IN}", (chosen,))
    connection.execute(f"DELETE FROM vector WHERE kind = 'relation' AND item {IN}", (chosen,))
    connection.execute(f"DELETE FROM embedding_queue WHERE kind = 'relation' AND item {IN}", (chosen,))


def drop_unused(connection: apsw.Connection, entities: Collection[int]) -> int:
    """Delete those of the entities that no relation speaks of and no media belong to; returns how many."""
    connection.execute(
        f"DELETE FROM entity WHERE number {IN}"
        " AND NOT EXISTS (SELECT 1 FROM relation WHERE subject = entity.number)"
        " AND NOT EXISTS (SELECT 1 FROM relation WHERE object = entity.number)"
        " AND NOT EXISTS (SELECT 1 FROM media_block WHERE holder_kind = 'entity' AND holder = entity.number)",
        (json.dumps(list(entities)),),
    )
    return connection.changes()


def take_back_sentences(connection: apsw.Connection, numbers: Sequence[int]) -> None:
    """Take the sentences of relations away from those that replaced them and had inherited these sentences."""
    heirs = [number for (number,) in connection.execute(_SUCCESSORS, (json.dumps(numbers),))]
    if heirs:
        connection.execute(f"UPDATE relation SET sentence = '' WHERE number {IN}", (json.dumps(heirs),))
        index(connection, heirs)


def without_successor(connection: apsw.Connection, numbers: Sequence[int]) -> list[int]:
    """Return the relations that nothing has replaced any more if these are deleted; others get the next successor."""
    chosen = json.dumps(numbers)
    # One link of a chain at a time.
    connection.execute(_PASS_ON, (chosen,))
    while connection.changes():
        connection.execute(_PASS_ON, (chosen,))
    return [number for (number,) in connection.execute(_WITHOUT_SUCCESSOR, (chosen,))]
