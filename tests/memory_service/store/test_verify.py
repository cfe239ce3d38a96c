"""Verifying sees every kind of damage, and nothing where there is none; repairing cures what is only derived."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from memory_service.model import Check, Note, Report, Selection
from memory_service.store import verify
from memory_service.store.checks import QUESTIONS
from memory_service.store.connection import open_for_writing
from memory_service.store.sqlite import SqliteStore
from memory_service.store.verify import MEDIUM, WORD_INDEXES
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event

DERIVED = {
    WORD_INDEXES,
    "everything_has_its_words",
    "words_have_their_item",
    "everything_has_its_vector_or_waits",
    "vectors_have_their_item",
    "waiting_have_their_item",
    "scene_members_have_their_item",
}


async def verified(store: SqliteStore) -> Report:
    return await store.upkeep.verify(lambda done, of: None)


async def failing(store: SqliteStore) -> dict[str, Check]:
    return {check.name: check for check in (await verified(store)).checks if not check.ok}


@pytest.fixture
async def full(store: SqliteStore) -> SqliteStore:
    """A store with something of everything: encoded and waiting, archived and not, forgotten, replaced."""
    await store.events.append_many([an_event(f"t{n}", f"cake number{n} 静安寺", "Noted.") for n in range(20)])
    await store.events.append(an_event("shared", "a word for all", sees=()))
    await store.events.append(an_event("both", "between us", sees=("ann", "owner")))
    await store.events.append(an_event("silent", " ", ""))
    await store.documents.archive(["t1", "t2", "t3", "both"], "owner")
    for n in range(2):
        await store.documents.write_note(Note(f"n{n}", "owner", ("owner",), False, NOON, f"note {n}", "a note"))
    await tell(store)
    space = await store.vectors.open_space("print", "test", 3)
    items = await store.vectors.queued(15)
    await store.vectors.put(space, [(item, {part: b"abc" for part in item.parts}) for item in items])
    await store.events.append(an_event("gone"))
    await store.forgetting.delete(Selection(ids=("gone",)))
    return store


async def tell(store: SqliteStore) -> None:
    def write(connection: apsw.Connection) -> None:
        for name in ("Rex", "Ann"):
            connection.execute(
                "INSERT INTO entity (key, audience, name, created) SELECT ?, audience, ?, 0 FROM event WHERE id = 't1'",
                (name.lower(), name),
            )
        connection.execute(
            "INSERT INTO relation (id, subject, type, object, audience, principal, valid_from, created, origin, source,"
            " source_event, sentence) SELECT 'r1', 1, 'belongs to', 2, audience, 'owner', 0, 0, 'model', 't1', number,"
            " 'Rex is mine' FROM event WHERE id = 't1'"
        )
        connection.execute("INSERT INTO relation_words (rowid, sentence) VALUES (1, 'rex')")
        connection.execute("INSERT INTO embedding_queue VALUES ('relation', 1)")
        connection.execute(
            "INSERT INTO scene (audience, key, origin, strength, created, updated) VALUES (1, 'k', 'declared', 1, 0, 0)"
        )
        connection.execute("INSERT INTO scene_member VALUES (1, 'event', 1, 1, 0)")
        connection.execute(
            "INSERT INTO media_block (id, digest, mime, bytes, holder_kind, holder, created)"
            " VALUES ('m1', 'd', 'image/png', 1, 'event', 1, 0)"
        )

    await store._database.write(write)


async def damage(store: SqliteStore, *statements: str) -> None:
    """Do what no part of the store would: without foreign keys, and without what the tables themselves refuse."""

    def write(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        try:
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.execute("PRAGMA ignore_check_constraints = OFF")
            connection.execute("PRAGMA foreign_keys = ON")

    await asyncio.wrap_future(store._database._writer.submit_outside(write))


async def test_a_store_in_use_is_whole(full: SqliteStore) -> None:
    report = await verified(full)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert {check.name for check in report.checks} >= {question.check for question in QUESTIONS} | DERIVED


async def test_an_empty_store_is_whole(store: SqliteStore) -> None:
    assert (await verified(store)).ok


DAMAGE: list[tuple[str, str, str]] = [
    ("everything_has_its_words", "t5", "DELETE FROM event_words WHERE rowid = 6"),
    ("everything_has_its_words", "n0", "DELETE FROM document_words WHERE rowid IN (SELECT number FROM document)"),
    ("everything_has_its_words", "r1", "DELETE FROM relation_words WHERE rowid = 1"),
    ("words_have_their_item", "event 999", "INSERT INTO event_words (rowid, said) VALUES (999, 'ghost')"),
    ("words_have_their_item", "document 999", "INSERT INTO document_words (rowid, content) VALUES (999, 'ghost')"),
    ("words_have_their_item", "relation 999", "INSERT INTO relation_words (rowid, type) VALUES (999, 'ghost')"),
    ("everything_has_its_vector_or_waits", "t0", "DELETE FROM embedding_queue WHERE kind = 'event' AND item = 1"),
    ("everything_has_its_vector_or_waits", "both", "DELETE FROM vector WHERE kind = 'event' AND item = 22"),
    (
        "everything_has_its_vector_or_waits",
        "t19",
        "DELETE FROM vector WHERE kind = 'event' AND item = 20 AND part = 'reply'",
    ),
    (
        "everything_has_its_vector_or_waits",
        "t8",
        "INSERT INTO vector_space (fingerprint, encoder, dimensions, opened) VALUES ('new', 'test', 3, 9e9)",
    ),
    (
        "vectors_have_their_item",
        "event 999",
        "INSERT INTO vector (space, kind, item, part, code) VALUES (1, 'event', 999, 'said', x'00')",
    ),
    (
        "vectors_have_their_item",
        "media 999",
        "INSERT INTO vector (space, kind, item, part, code) VALUES (1, 'media', 999, 'said', x'00')",
    ),
    ("waiting_have_their_item", "document 999", "INSERT INTO embedding_queue VALUES ('document', 999)"),
    ("scene_members_have_their_item", "relation 999", "INSERT INTO scene_member VALUES (1, 'relation', 999, 1, 0)"),
    ("media_have_their_holder", "m1", "UPDATE media_block SET holder = 999"),
    ("media_have_their_holder", "m1", "UPDATE media_block SET holder_kind = 'entity', holder = 999"),
    ("archives_have_events", "lonely", "UPDATE document SET kind = 'archive', id = 'lonely' WHERE id = 'n1'"),
    ("events_lie_where_their_tier_says", "t7", "UPDATE event SET tier = 'document' WHERE id = 't7'"),
    ("events_lie_where_their_tier_says", "t1", "UPDATE event SET tier = 'context' WHERE id = 't1'"),
    ("events_lie_where_their_tier_says", "t1", "UPDATE event SET tier = 'graph' WHERE id = 't1'"),
    ("events_lie_where_their_tier_says", "t2", "UPDATE event SET audience = 0 WHERE id = 't2'"),
    (
        "archives_know_when_their_events_happened",
        "doc-",
        "UPDATE document SET last_time = 0 WHERE kind = 'archive' AND audience = 1",
    ),
    ("what_was_forgotten_is_gone", "9", "INSERT INTO forgotten SELECT digest_of(id), 0, 1 FROM event WHERE id = 't8'"),
    ("audiences_have_their_members", '["owner"]', "DELETE FROM audience_member WHERE audience = 1"),
    ("audiences_have_their_members", "77 [ ]", "INSERT INTO audience VALUES (77, '[ ]')"),
    ("relations_have_their_ends", "r1", "DELETE FROM entity WHERE number = 2"),
    ("relations_have_their_ends", "r1", "UPDATE entity SET audience = 0 WHERE number = 1"),
    ("relations_know_their_event", "r1", "UPDATE relation SET source_event = NULL"),
    ("references_have_their_target", "event 5 has no audience", "UPDATE event SET audience = 99 WHERE number = 5"),
]


@pytest.mark.parametrize(("check", "example", "statement"), DAMAGE)
async def test_damage_is_seen(full: SqliteStore, check: str, example: str, statement: str) -> None:
    await damage(full, statement)
    found = await failing(full)
    assert check in found, found
    assert found[check].count >= 1
    assert any(each.startswith(example) for each in found[check].examples) or example in str(found[check].examples)


def test_every_question_is_seen_to_fail() -> None:
    assert {question.check for question in QUESTIONS} <= {check for check, _, _ in DAMAGE}


async def test_many_failures_are_counted_and_five_are_shown(full: SqliteStore) -> None:
    await damage(full, "DELETE FROM event_words WHERE rowid <= 12")
    check = (await failing(full))["everything_has_its_words"]
    assert (check.count, len(check.examples)) == (12, 5)


async def test_a_word_index_that_is_not_sound_is_seen_and_written_anew(full: SqliteStore, segmenter: Segmenter) -> None:
    await damage(full, "UPDATE event_words_data SET block = zeroblob(length(block)) WHERE id > 10")
    assert WORD_INDEXES in await failing(full)
    done = await full.upkeep.repair()
    assert done[WORD_INDEXES] == 3 and done["everything_has_its_words"] == 23 + 2 + 1
    assert (await verified(full)).ok
    search = await full.events.find(terms("静安寺", segmenter), ("owner",), (), 50)
    assert len(search.candidates) == 20


async def test_a_page_that_is_not_sound_is_seen(tmp_path: Path, full: SqliteStore) -> None:
    await full.close()
    path = tmp_path / "memory.db"
    connection = open_for_writing(path)
    page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'event_by_time'").get
    connection.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4_096 : page * 4_096] = b"\xa5" * 4_096
    path.write_bytes(content)
    store = SqliteStore.open(path)
    try:
        assert MEDIUM in await failing(store)
    finally:
        await store.close()


@pytest.mark.parametrize(("check", "statement"), sorted({(c, s) for c, _, s in DAMAGE if c in DERIVED}))
async def test_what_is_derived_is_made_anew(full: SqliteStore, check: str, statement: str) -> None:
    await damage(full, statement)
    done = await full.upkeep.repair()
    assert done[check] >= 1
    assert await failing(full) == {}
    assert await full.upkeep.repair() == {}


async def test_what_is_not_derived_is_left_alone(full: SqliteStore) -> None:
    await damage(full, "UPDATE event SET tier = 'document' WHERE id = 't7'")
    assert await full.upkeep.repair() == {}
    assert "events_lie_where_their_tier_says" in await failing(full)


async def test_it_says_how_far_it_is_and_large_tables_take_several_steps(
    full: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_service.store.verify._ROWS", 7)
    seen: list[tuple[int, int]] = []
    await damage(full, "DELETE FROM event_words WHERE rowid IN (7, 8, 14, 15)")
    report = await full.upkeep.verify(lambda done, of: seen.append((done, of)))
    assert {check.name: check.count for check in report.checks if not check.ok} == {"everything_has_its_words": 4}
    steps = seen[-1][1]
    assert seen == [(done, steps) for done in range(steps + 1)] and steps > len(QUESTIONS)


async def test_writers_go_on_while_it_looks_and_what_they_write_is_no_damage(
    full: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, goes_on = threading.Event(), threading.Event()
    ask = verify._ask_references

    def slow(connection: apsw.Connection, found: verify._Found) -> None:
        rows = connection.execute("SELECT id FROM event")
        assert rows.fetchone()
        looks.set()
        assert goes_on.wait(20)
        rows.close()
        ask(connection, found)

    monkeypatch.setattr(verify, "_ask_references", slow)
    looking = asyncio.ensure_future(verified(full))
    assert await asyncio.to_thread(looks.wait, 20)
    await full.events.append_many([an_event(f"w{number}", "meanwhile") for number in range(50)])
    await full.documents.archive(["w1", "w2"], "owner")
    assert not looking.done()
    goes_on.set()
    assert (await looking).ok
