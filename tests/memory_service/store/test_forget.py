"""Forgetting leaves nothing: no row, no index entry, no byte in the files; and what was forgotten stays so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from memory_service.model import Note, Selection
from memory_service.store.sqlite import SqliteStore
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event

SECRET = "zebraquokka77"
TABLES = ("event", "event_words", "document", "document_words", "relation", "relation_words", "entity", "vector")


@pytest.fixture
def rows(store: SqliteStore) -> Callable[..., Any]:
    async def ask(question: str, *values: object) -> list[Any]:
        return await store._database.read(lambda connection: list(connection.execute(question, values)))

    return ask


async def related(store: SqliteStore, id: str, source: str | None, sentence: str, audience: str = "owner") -> None:
    """Store a relation as the graph does, between two entities of its own."""

    def write(connection: apsw.Connection) -> None:
        for name in (f"{id}-subject", f"{id}-object"):
            connection.execute(
                "INSERT INTO entity (key, audience, name, created) SELECT ?, number, ?, 0 FROM audience"
                " WHERE members = ?",
                (name, name, json.dumps([audience])),
            )
        connection.execute(
            "INSERT INTO relation (id, subject, type, object, audience, principal, valid_from, created, origin,"
            " source_event, sentence) SELECT ?, s.number, 'is', o.number, a.number, ?, 0, ?, 'model',"
            " (SELECT number FROM event WHERE id = ?), ? FROM entity s, entity o, audience a"
            " WHERE s.key = ? AND o.key = ? AND a.members = ?",
            (id, audience, NOON, source, sentence, f"{id}-subject", f"{id}-object", json.dumps([audience])),
        )
        number = connection.last_insert_rowid()
        connection.execute("INSERT INTO relation_words (rowid, sentence) VALUES (?, ?)", (number, sentence))
        connection.execute("INSERT INTO embedding_queue VALUES ('relation', ?)", (number,))

    await store._database.write(write)


def a_note(id: str, content: str, principal: str = "owner", source: str | None = None) -> Note:
    return Note(id, principal, (principal,), False, NOON, content, "a note", source_event=source)


async def forget(store: SqliteStore, **selection: Any) -> dict[str, int]:
    deleted = await store.forgetting.delete(Selection(**selection))
    assert await store.forgetting.erase()
    await store.forgetting.settle()
    return dict(deleted.counts)


def in_files(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


async def test_nothing_is_left_in_any_table_or_file(store: SqliteStore, rows: Any, tmp_path: Path) -> None:
    await store.events.append(an_event("t1", f"my word is {SECRET}", f"{SECRET}, then"))
    await store.events.append(an_event("t2", "the weather"))
    space = await store.vectors.open_space("f", "e", 3)
    items = await store.vectors.queued(10)
    await store.vectors.put(space, [(item, {"said": b"abc"}) for item in items])
    await store.documents.archive(["t1"], "owner")
    await store.documents.write_note(a_note("n1", f"remember {SECRET}", source="t1"))
    await related(store, "r1", "t1", f"the word is {SECRET}")
    assert "memory.db-wal" in in_files(tmp_path, SECRET)
    deleted = await forget(store, ids=("t1",))
    assert deleted["events"] == deleted["words"] == deleted["notes"] == deleted["relations"] == 1
    assert deleted["documents"] == 1 and deleted["entities"] == 2 and deleted["vectors"] == 1
    assert in_files(tmp_path, SECRET) == []
    counts = {table: (await rows(f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES}
    assert counts == {**dict.fromkeys(TABLES, 0), "event": 1, "event_words": 1, "vector": 1}
    assert await rows("SELECT 1 FROM embedding_queue WHERE kind <> 'event'") == []


async def test_what_was_forgotten_cannot_be_appended_again(store: SqliteStore, rows: Any) -> None:
    event = an_event("t1", "hello")
    assert await store.events.append(event)
    await forget(store, ids=("t1",))
    assert not await store.events.append(event)
    assert await store.events.append_many([event, an_event("t2")]) == 1
    assert [found.id for found in await store.events.get(["t1", "t2"])] == ["t2"]
    assert await store.forgetting.forgotten(["t1", "t2", "t3"]) == {"t1"}
    ((digest,),) = await rows("SELECT id FROM forgotten")
    assert b"t1" not in digest


async def test_a_person_is_forgotten_within_a_time(store: SqliteStore) -> None:
    for number in range(6):
        who = ("ann", "bea")[number % 2]
        await store.events.append(an_event(f"t{number}", "cake", principal=who, sees=(who,), time=NOON + number))
    await store.documents.write_note(a_note("n1", "cake", "ann"))
    await store.documents.write_note(a_note("n2", "cake", "bea"))
    selection = Selection(principal="ann", after=NOON, before=NOON + 4)
    selected = await store.forgetting.select(selection, 1)
    assert (selected.events, selected.notes, selected.relations) == (2, 1, 0)
    assert [event.id for event in selected.examples] == ["t2"]
    deleted = await store.forgetting.delete(selection)
    assert (deleted.counts["events"], deleted.counts["notes"]) == (2, 1)
    assert {kind: len(numbers) for kind, numbers in deleted.numbers.items()} == {"event": 2, "document": 1}
    left = await store.events.get([f"t{number}" for number in range(6)])
    assert [event.id for event in left] == ["t1", "t3", "t4", "t5"]
    assert await store.documents.get(["n1", "n2"]) == await store.documents.get(["n2"])


async def test_a_selection_of_nothing_selects_nothing(store: SqliteStore) -> None:
    await store.events.append(an_event("t1"))
    assert (await store.forgetting.select(Selection(), 5)).events == 0
    assert not (await store.forgetting.delete(Selection())).counts
    assert (await store.upkeep.stats()).events == 1


async def test_an_archive_that_keeps_events_says_what_it_is_now(store: SqliteStore) -> None:
    for number in range(3):
        await store.events.append(an_event(f"t{number}", time=NOON + 86_400 * number))
    (document,) = await store.documents.archive(["t0", "t1", "t2"], "owner")
    await forget(store, ids=("t0", "t1"))
    (left,) = await store.documents.get([document.id])
    assert left.events == ("t2",)
    assert left.first_time == left.last_time == NOON + 86_400 * 2
    assert left.summary.startswith("1 events of ")


async def test_forgetting_an_archive_forgets_its_events(store: SqliteStore) -> None:
    await store.events.append(an_event("t1"))
    await store.events.append(an_event("t2"))
    (document,) = await store.documents.archive(["t1"], "owner")
    assert (await store.forgetting.select(Selection(ids=(document.id,)), 5)).events == 1
    assert await store.forgetting.lanes([document.id]) == {"t1": ("webui", "owner", "c1")}
    assert (await forget(store, ids=(document.id,)))["events"] == 1
    assert (await store.upkeep.stats()).events == 1


async def test_a_fact_that_a_forgotten_one_had_replaced_holds_again(store: SqliteStore, rows: Any) -> None:
    await store.events.append(an_event("t1"))
    await store.events.append(an_event("t2"))
    await related(store, "old", "t1", "lives here")
    await related(store, "new", "t2", "lives there")
    await store._database.write(
        lambda connection: connection.execute(
            "UPDATE relation SET status = 'superseded', valid_to = 1,"
            " superseded_by = (SELECT number FROM relation WHERE id = 'new') WHERE id = 'old'"
        )
    )
    await forget(store, ids=("t2",))
    assert await rows("SELECT id, status, valid_to, superseded_by FROM relation") == [("old", "active", None, None)]


async def test_facts_without_a_source_go_with_their_person(store: SqliteStore, rows: Any) -> None:
    await store.events.append(an_event("t1", sees=("ann",), principal="ann"))
    await store.events.append(an_event("t2", sees=("bea",), principal="bea"))
    await related(store, "r1", None, "told by ann", "ann")
    await related(store, "r2", None, "told by bea", "bea")
    assert (await forget(store, principal="ann"))["relations"] == 1
    assert await rows("SELECT id FROM relation") == [("r2",)]


async def test_media_go_when_nothing_holds_them(store: SqliteStore) -> None:
    await store.events.append(an_event("t1"))
    await store.events.append(an_event("t2"))
    blocks = [("b1", "only", "t1"), ("b2", "both", "t1"), ("b3", "both", "t2")]
    await store._database.write(
        lambda connection: (
            connection.executemany(
                "INSERT INTO media_block (id, digest, mime, bytes, holder_kind, holder, created)"
                " SELECT ?, ?, 'image/png', 1, 'event', number, 0 FROM event WHERE id = ?",
                blocks,
            )
            and None
        )
    )
    deleted = await store.forgetting.delete(Selection(ids=("t1",)))
    assert deleted.counts["media"] == 2
    assert await store.forgetting.media() == ("only",)
    assert not await store.forgetting.is_settled()
    await store.forgetting.settle()
    assert await store.forgetting.is_settled() and await store.forgetting.media() == ()


async def test_scenes_that_rest_on_it_alone_go_too(store: SqliteStore, rows: Any) -> None:
    await store.events.append(an_event("t1"))

    def write(connection: apsw.Connection) -> None:
        for key, origin in (("alone", "emergent"), ("named", "declared")):
            connection.execute(
                "INSERT INTO scene (audience, key, origin, strength, created, updated) VALUES (0, ?, ?, 1, 0, 0)",
                (key, origin),
            )
            scene = connection.last_insert_rowid()
            connection.execute("INSERT INTO scene_member VALUES (?, 'event', 1, 1, 0)", (scene,))
            connection.execute("INSERT INTO scene_feature VALUES (?, 'topic:x', 1, 0)", (scene,))

    await store._database.write(write)
    assert (await forget(store, ids=("t1",)))["scene_members"] == 2
    assert await rows("SELECT key FROM scene") == [("named",)]
    assert await rows("SELECT count(*) FROM scene_feature") == [(1,)]


async def test_words_of_others_are_still_found(store: SqliteStore, segmenter: Segmenter) -> None:
    await store.events.append_many([an_event(f"t{number}", f"cake number{number}") for number in range(100)])
    await forget(store, ids=tuple(f"t{number}" for number in range(0, 100, 2)))
    search = await store.events.find(terms("cake", segmenter), None, (), 100)
    assert {candidate.event.id for candidate in search.candidates} == {f"t{number}" for number in range(1, 100, 2)}


async def test_a_question_under_way_keeps_the_log_from_being_emptied(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory_service.store.database._LOG_PAUSE_S", 0.0)
    await store.events.append(an_event("t1", SECRET))
    other = apsw.Connection(str(tmp_path / "memory.db"))
    other.execute("BEGIN")
    list(other.execute("SELECT id FROM event"))
    await store.forgetting.delete(Selection(ids=("t1",)))
    assert not await store.forgetting.erase()
    assert not await store.forgetting.is_settled()
    other.execute("COMMIT")
    other.close()
    assert await store.forgetting.erase()
    assert in_files(tmp_path, SECRET) == []
