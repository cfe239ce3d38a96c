"""What must hold in ``memory.db``, as questions for the rows in which it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """Asks for the rows of a table, within a range of their key, for which something does not hold.

    :ivar check: the name of what should hold; several questions may belong to one check
    :ivar table: the table whose rows are gone through, with its alias
    :ivar key: the column by whose ranges that is done
    :ivar shown: what names a row in the report
    :ivar fails: the condition that holds for a row that is found wanting
    """

    check: str
    table: str
    key: str
    shown: str
    fails: str

    @property
    def span(self) -> str:
        """The question for the least and the greatest key."""
        return f"SELECT min({self.key}), max({self.key}) FROM {self.table}"

    @property
    def failing(self) -> str:
        """The question for failing rows whose key lies after the first parameter, up to the second."""
        return f"SELECT {self.shown} FROM {self.table} WHERE {self.key} > ? AND {self.key} <= ? AND ({self.fails})"


_TABLES = {"event": "event", "document": "document", "relation": "relation", "media": "media_block"}
_HAS_WORDS = {"event": "TRUE", "document": "e.kind = 'note'", "relation": "e.status <> 'deleted'"}
_CURRENT = "(SELECT number FROM vector_space ORDER BY opened DESC, number DESC LIMIT 1)"
_HAS_VECTOR = {
    "event": (("said", "trim(e.input) <> ''"), ("reply", "trim(e.response) <> ''")),
    "document": (("text", "e.kind = 'note'"),),
    "relation": (("fact", "e.status = 'active'"),),
}


def _words() -> Iterator[Question]:
    for kind, expected in _HAS_WORDS.items():
        table, sizes = f"{kind} e", f"{kind}_words_docsize w"
        missing = f"{expected} AND NOT EXISTS (SELECT 1 FROM {sizes} WHERE w.id = e.number)"
        yield Question("everything_has_its_words", table, "e.number", "e.id", missing)
        gone = f"NOT EXISTS (SELECT 1 FROM {table} WHERE e.number = w.id AND {expected})"
        yield Question("words_have_their_item", sizes, "w.id", f"'{kind} ' || w.id", gone)


def _vectors() -> Iterator[Question]:
    for kind, parts in _HAS_VECTOR.items():
        waits = f"EXISTS (SELECT 1 FROM embedding_queue q WHERE q.kind = '{kind}' AND q.item = e.number)"
        lacks = " OR ".join(
            f"({expected} AND NOT EXISTS (SELECT 1 FROM vector v WHERE v.kind = '{kind}' AND v.item = e.number"
            f" AND v.space = {_CURRENT} AND v.part = '{part}'))"
            for part, expected in parts
        )
        yield Question(
            "everything_has_its_vector_or_waits", f"{kind} e", "e.number", "e.id", f"NOT {waits} AND ({lacks})"
        )


def _belongings() -> Iterator[Question]:
    for kind, table in _TABLES.items():
        for check, of, key in (
            ("vectors_have_their_item", "vector", "o.rowid"),
            ("waiting_have_their_item", "embedding_queue", "o.item"),
            ("scene_members_have_their_item", "scene_member", "o.item"),
        ):
            gone = f"o.kind = '{kind}' AND NOT EXISTS (SELECT 1 FROM {table} e WHERE e.number = o.item)"
            yield Question(check, f"{of} o", key, f"'{kind} ' || o.item", gone)
    for kind in ("event", "document", "entity"):
        gone = f"b.holder_kind = '{kind}' AND NOT EXISTS (SELECT 1 FROM {kind} h WHERE h.number = b.holder)"
        yield Question("media_have_their_holder", "media_block b", "b.number", "b.id", gone)


_TIERS = (
    Question(
        "archives_have_events",
        "document d",
        "d.number",
        "d.id",
        "d.kind = 'archive' AND NOT EXISTS (SELECT 1 FROM event e WHERE e.document = d.number)",
    ),
    Question(
        "events_lie_where_their_tier_says",
        "event e",
        "e.number",
        "e.id",
        "CASE WHEN e.tier = 'context' THEN e.document IS NOT NULL ELSE NOT EXISTS (SELECT 1 FROM document d"
        " WHERE d.number = e.document AND d.kind = 'archive' AND d.tier = e.tier AND d.audience = e.audience) END",
    ),
    Question(
        "archives_know_when_their_events_happened",
        "document d",
        "d.number",
        "d.id",
        "d.kind = 'archive' AND (d.first_time, d.last_time)"
        " <> (SELECT min(e.time), max(e.time) FROM event e WHERE e.document = d.number)",
    ),
    Question(
        "what_was_forgotten_is_gone",
        "event e",
        "e.number",
        "e.number",
        "EXISTS (SELECT 1 FROM forgotten) AND EXISTS (SELECT 1 FROM forgotten f WHERE f.id = digest_of(e.id))",
    ),
)
_AUDIENCES = (
    Question(
        "audiences_have_their_members",
        "audience a",
        "a.number",
        "a.number || ' ' || a.members",
        "(a.number = 0) <> (a.members = '[]') OR a.members <> (SELECT json_group_array(m.principal ORDER BY"
        " m.principal) FROM audience_member m WHERE m.audience = a.number)",
    ),
)
_RELATIONS = (
    Question(
        "relations_have_their_ends",
        "relation r",
        "r.number",
        "r.id",
        "NOT EXISTS (SELECT 1 FROM entity n WHERE n.number = r.subject AND n.audience = r.audience)"
        " OR NOT EXISTS (SELECT 1 FROM entity n WHERE n.number = r.object AND n.audience = r.audience)",
    ),
    Question(
        "relations_know_their_event",
        "relation r",
        "r.number",
        "r.id",
        "r.source_event IS NULL AND EXISTS (SELECT 1 FROM event e WHERE e.id = r.source)",
    ),
)

QUESTIONS: tuple[Question, ...] = (*_words(), *_vectors(), *_belongings(), *_TIERS, *_AUDIENCES, *_RELATIONS)
