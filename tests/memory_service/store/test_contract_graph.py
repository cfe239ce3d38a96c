"""What any graph must do: each fact once, found by names and words, changed exactly, seen by those whose it is."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from memory_service.graph.model import (
    MAX_FACTS,
    RECENT,
    Correction,
    Criteria,
    Fact,
    GraphQuestion,
    Recollection,
    Telling,
)
from memory_service.model import Note, Selection
from memory_service.store.abc import Store
from memory_service.store.sqlite import SqliteStore
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event

OWNER = ("owner",)


@pytest.fixture(params=[SqliteStore])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    store: Store = request.param.open(tmp_path / "memory.db")
    yield store
    await store.close()


def told(*sees: str, **more: Any) -> Telling:
    """Make the telling of a fact that ``sees`` may see, ``owner`` if nobody is named; an empty name: everybody."""
    visible_to = tuple(filter(None, sees or OWNER))
    fields: dict[str, Any] = {"principal": (*visible_to, "owner")[0], "time": NOON, "origin": "model", **more}
    return Telling(visible_to=visible_to, shared=not visible_to, **fields)


def facts(*statements: str, **more: Any) -> list[Fact]:
    """Make facts of ``subject | relation | object | sentence``."""
    return [Fact(*(part.strip() for part in statement.split("|")), **more) for statement in statements]


async def commit(store: Store, *statements: str, telling: Telling | None = None, **more: Any) -> tuple[str, ...]:
    committed = await store.graph.commit(facts(*statements, **more), telling or told())
    assert not committed.refused
    return committed.new


async def ask(store: Store, *keywords: str, audience: tuple[str, ...] | None = OWNER, **more: Any) -> Recollection:
    return await store.graph.recall(GraphQuestion(keywords, **{"relations": 50, **more}), audience)


async def said(store: Store, *keywords: str, **more: Any) -> list[str]:
    return [relation.statement for relation in (await ask(store, *keywords, **more)).relations]


# Storing


async def test_a_fact_comes_back_as_it_was_told(store: Store) -> None:
    await store.events.append(an_event("t1"))
    fact = Fact("Ann Lee", "Works at", "Bäckerei Süß", "Ann works at the bakery.", 0.8, "person", "shop")
    telling = told("owner", "bea", session="webui/c1", source="t1", time=NOON + 5)
    committed = await store.graph.commit([fact], telling)
    (relation,) = (await ask(store, "ann lee")).relations
    assert committed.new == (relation.id,) and not committed.known
    assert relation.statement == "Ann Lee works at Bäckerei Süß"
    assert relation.text == "Ann Lee works at Bäckerei Süß: Ann works at the bakery."
    assert (relation.subject_type, relation.object_type, relation.confidence) == ("person", "shop", 0.8)
    assert (relation.valid_from, relation.valid_to, relation.status) == (NOON + 5, None, "active")
    assert (relation.session, relation.source, relation.principal) == ("webui/c1", "t1", "owner")


async def test_failure_19_the_same_fact_is_stored_once_however_often_it_is_told(store: Store) -> None:
    (first,) = await commit(store, "Ann | lives in | Rome")
    for number in range(30):
        again = facts("Ann | lives in | Rome", "ＡＮＮ | Lives  In | ROME")
        committed = await store.graph.commit(again, told(source=f"t{number}", time=NOON + number))
        assert (committed.new, committed.known, committed.refused) == ((), (first,), ())
    assert (await store.graph.introspect(OWNER)).relations == 1
    assert (await ask(store, "ann")).relations[0].valid_from == NOON


async def test_failure_21_a_number_is_a_name(store: Store) -> None:
    assert len(await commit(store, "gateway | listens on | 13010", "shelf | has number | 5", "家 | 有 | 猫")) == 3
    assert await said(store, "13010") == ["gateway listens on 13010"]


@pytest.mark.parametrize(
    ("statement", "field"),
    [
        (" | is | Rome", "subject"),
        ("Ann | | Rome", "type"),
        ("Ann | is | ", "object"),
        ("Ann | !? | Rome", "type"),
        ("Ann | is | …", "object"),
        ("a | is | Rome", "subject"),
        ("Ann | is | " + "x" * 101, "object"),
        ("Ann | " + "x" * 51 + " | Rome", "type"),
        ("Ann | is | ann", "object"),
        ("Ann\x07 | is | Rome", "subject"),
        ("Ann | is | Rome | " + "x" * 2_001, "sentence"),
    ],
)
async def test_what_cannot_be_a_fact_is_refused_by_field(store: Store, statement: str, field: str) -> None:
    committed = await store.graph.commit(facts("Bea | likes | tea", statement), told())
    assert len(committed.new) == 1
    assert [(refused.index, refused.field) for refused in committed.refused] == [(1, field)]
    assert (await store.graph.introspect(OWNER)).relations == 1


async def test_failure_22_the_report_is_what_happened(store: Store) -> None:
    await commit(store, "Ann | likes | tea")
    given = facts("Ann | likes | tea", "Ann | likes | cake", "Ann | likes | cake", "Ann | likes | …")
    committed = await store.graph.commit(given, told())
    assert (len(committed.new), len(committed.known), len(committed.refused)) == (1, 1, 1)
    assert sorted(await said(store, "ann")) == ["Ann likes cake", "Ann likes tea"]


async def test_failure_25_a_fact_that_was_written_is_found_at_once(store: Store) -> None:
    await commit(store, "Ann | likes | tea")
    assert (await ask(store, "ann")).relations[0].status == "active"


async def test_failure_26_a_fact_is_found_in_its_session(store: Store) -> None:
    await commit(store, "Ann | likes | tea", telling=told(session="webui/c1"))
    await commit(store, "Ann | likes | cake", telling=told(session="webui/c2"))
    assert await said(store, "ann", session="webui/c1") == ["Ann likes tea"]
    assert await said(store, "ann", session="webui/c3") == []
    assert len(await said(store, "ann")) == 2


async def test_failure_29_a_second_fact_of_the_same_relation_is_kept(store: Store) -> None:
    many = [f"Ann | likes | thing {number}" for number in range(MAX_FACTS)]
    assert len(await commit(store, *many)) == MAX_FACTS
    assert (await store.graph.introspect(OWNER)).relations == MAX_FACTS


async def test_too_many_facts_at_once_are_refused_and_none_is_stored(store: Store) -> None:
    with pytest.raises(Invalid, match="at once"):
        await store.graph.commit(facts(*(f"Ann | likes | thing {n}" for n in range(MAX_FACTS + 1))), told())
    assert (await store.graph.introspect(OWNER)).relations == 0


async def test_a_fact_told_in_a_turn_is_linked_to_its_event_when_that_comes(store: Store) -> None:
    (id,) = await commit(store, "Ann | likes | tea", telling=told(source="t1"))
    assert not (await store.graph.recall(GraphQuestion(["ann"]), OWNER)).relations[0].valid_to
    await store.events.append(an_event("t1", "I like tea"))
    described = await store.upkeep.describe("t1")
    assert described is not None and described["relations"] == [id]
    deleted = await store.forgetting.delete(Selection(ids=("t1",)))
    assert deleted.counts["relations"] == 1
    assert await said(store, "ann") == []


async def test_what_was_told_in_a_forgotten_turn_cannot_be_stored(store: Store) -> None:
    await store.events.append(an_event("t1", "I like tea"))
    await store.forgetting.delete(Selection(ids=("t1",)))
    committed = await store.graph.commit(facts("Ann | likes | tea"), told(source="t1"))
    assert [refused.field for refused in committed.refused] == ["source"]
    assert await said(store, "ann") == []


# From a document into the graph


async def archived(store: Store, *ids: str) -> str:
    for id in ids:
        await store.events.append(an_event(id, f"cake {id}"))
    (document,) = await store.documents.archive(ids, "owner")
    return document.id


async def test_a_document_moves_into_the_graph_with_its_events_and_they_stay_searchable(
    store: Store, segmenter: Segmenter
) -> None:
    document = await archived(store, "t1", "t2")
    committed = await store.graph.to_graph(document, facts("Ann | bakes | cake", source="t2"))
    assert len(committed.new) == 1
    assert (await store.documents.get([document]))[0].tier == "graph"
    assert {event.tier for event in await store.events.get(["t1", "t2"])} == {"graph"}
    search = await store.events.find(terms("cake", segmenter), OWNER, (), 10)
    assert len(search.candidates) == 2
    (relation,) = (await ask(store, "ann")).relations
    assert (relation.source, relation.valid_from, relation.principal) == ("t2", NOON, "owner")
    again = await store.graph.to_graph(document, facts("Ann | bakes | cake", source="t2"))
    assert (again.new, again.known) == ((), committed.new)
    assert set(await store.documents.bring_back(["t1", "t2"])) == {"t1", "t2"}


@pytest.mark.parametrize("statements", [(), ("Ann | bakes | …",), ("the | is | cake",)])
async def test_failure_17_a_document_without_a_fact_stays_a_document(store: Store, statements: tuple[str, ...]) -> None:
    document = await archived(store, "t1")
    with pytest.raises(Conflict, match="stays a document"):
        await store.graph.to_graph(document, facts(*statements, source="t1"))
    assert (await store.documents.get([document]))[0].tier == "document"
    assert (await store.events.get(["t1"]))[0].tier == "document"
    assert (await store.graph.introspect(None)).entities == 0


async def test_failure_20_templates_and_empty_words_are_no_facts(store: Store) -> None:
    document = await archived(store, "t1", "t2")
    noise = [
        "2 events of 2023-05-02 | is | topic",
        "Ann | is | what",
        "context_archived | is | source",
        "我们 | 是 | 谁",
    ]
    committed = await store.graph.to_graph(document, facts("Ann | bakes | cake", *noise, source="t1"))
    assert len(committed.new) == 1
    assert [refused.index for refused in committed.refused] == [1, 2, 3, 4]


async def test_facts_of_a_document_come_from_its_events(store: Store) -> None:
    document = await archived(store, "t1")
    await store.events.append(an_event("elsewhere"))
    for source in (None, "elsewhere", "absent"):
        with pytest.raises(Conflict):
            await store.graph.to_graph(document, facts("Ann | bakes | cake", source=source))
    with pytest.raises(NotFound):
        await store.graph.to_graph("absent", facts("Ann | bakes | cake"))


async def test_the_facts_of_a_note_are_forgotten_with_it(store: Store) -> None:
    await store.documents.write_note(Note("n1", "ann", ("ann",), False, NOON, "Ann bakes cake", "cake"))
    await store.graph.to_graph("n1", facts("Ann | bakes | cake"))
    assert await said(store, "ann", audience=("ann",)) == ["Ann bakes cake"]
    await store.forgetting.delete(Selection(ids=("n1",)))
    assert await said(store, "ann", audience=("ann",)) == []


# Finding


async def test_an_exact_name_is_better_than_its_beginning_and_that_than_a_part(store: Store) -> None:
    await commit(store, "old rome | is | far", "rome tower | is | high", "Rome | is | old", "Oslo | is | cold")
    assert await said(store, "rome") == ["Rome is old", "rome tower is high", "old rome is far"]
    assert (await ask(store, "rome")).entities[:3] == ("Rome", "rome tower", "old rome")
    assert (await ask(store, "rome")).is_named
    assert not (await ask(store, "lo")).is_named


async def test_failure_27_a_chain_of_three_needs_three_steps(store: Store) -> None:
    await commit(store, "Ann | knows | Bea", "Carl | knows | Bea", "Carl | knows | Dan")
    chain = ["Ann knows Bea", "Carl knows Bea", "Carl knows Dan"]
    for depth in (1, 2, 3, 9):
        assert await said(store, "ann", depth=depth) == chain[: min(depth, 3)]


async def test_failure_28_both_ends_of_a_relation_are_neighbours(store: Store) -> None:
    await commit(store, "Ann | knows | Bea")
    assert await said(store, "ann") == await said(store, "bea") == ["Ann knows Bea"]


async def test_failure_30_the_caps_are_for_all_keywords_together(store: Store) -> None:
    for hub in range(4):
        await commit(store, *(f"hub{hub} | knows | thing {hub} {number}" for number in range(50)))
    found = await store.graph.recall(GraphQuestion([f"hub{hub}" for hub in range(4)]), OWNER)
    assert (len(found.entities), len(found.relations), found.omitted) == (20, 10, 190)


async def test_failure_31_a_generic_word_does_not_rank(store: Store) -> None:
    await commit(store, "port | is | number", "port | belongs to | service", "gateway | listens on | 13010")
    assert (await said(store, "port", "gateway"))[0] == "gateway listens on 13010"
    assert (await ask(store, "port", "gateway")).entities[0] == "gateway"
    assert "port is number" in await said(store, "port")


async def test_failure_32_of_what_was_told_in_the_same_second_the_last_is_the_newest(store: Store) -> None:
    for value in ("8001", "8002", "8003"):
        await commit(store, f"gateway | listens on | {value}")
    newest_first = [f"gateway listens on {value}" for value in ("8003", "8002", "8001")]
    assert await said(store, "gateway", sort=RECENT) == newest_first


async def test_failure_33_recent_and_relevance_are_different_orders(store: Store) -> None:
    await commit(store, "gateway | listens on | 8001", telling=told(time=NOON), confidence=0.9)
    await commit(store, "gateway | listens on | 8002", telling=told(time=NOON + 60), confidence=0.5)
    assert await said(store, "gateway") == ["gateway listens on 8001", "gateway listens on 8002"]
    assert await said(store, "gateway", sort=RECENT) == ["gateway listens on 8002", "gateway listens on 8001"]


async def test_words_of_the_sentence_find_a_fact_and_lead_no_further(store: Store, segmenter: Segmenter) -> None:
    await commit(store, "Ann | lives in | Rome | her attic smells of cinnamon", "Rome | lies on | Tiber")
    question = GraphQuestion([], terms("whose attic smells of cinnamon", segmenter))
    found = await store.graph.recall(question, OWNER)
    assert [relation.object for relation in found.relations] == ["Rome"]
    assert not found.is_named


async def test_the_fact_that_has_the_words_of_the_question_comes_first(store: Store, segmenter: Segmenter) -> None:
    await commit(store, *(f"Ann | likes | dish {number}" for number in range(30)), "Ann | has phone | 555 1234")
    for text in ("What is Ann's phone?", "ann phone"):
        found = await store.graph.recall(GraphQuestion([text], terms(text, segmenter)), OWNER)
        assert found.relations[0].object == "555 1234"
        assert found.is_named


async def test_chinese_names_and_sentences_are_found(store: Store, segmenter: Segmenter) -> None:
    await commit(store, "张伟 | 住在 | 静安寺附近 | 张伟上个月搬到了静安寺附近", "李娜 | 喜欢 | 普洱茶")
    for text in ("张伟住在哪里？", "谁搬到了静安寺？"):
        found = await store.graph.recall(GraphQuestion([text], terms(text, segmenter)), OWNER)
        assert [relation.subject for relation in found.relations] == ["张伟"], text


async def test_facts_are_found_by_words_and_by_number(store: Store, segmenter: Segmenter) -> None:
    await commit(store, "Ann | lives in | Rome | she moved there in May", "Bea | lives in | Oslo")
    asked = terms("who moved to rome", segmenter)
    (candidate,) = await store.graph.find_facts(asked, OWNER, 10)
    assert candidate.relation.statement == "Ann lives in Rome"
    assert {asked[index].text for index in candidate.matched} == {"moved", "rome"}
    assert await store.graph.facts_by_number([candidate.number, 999], OWNER) == {candidate.number: candidate.relation}
    assert await store.graph.find_facts(terms("zebra", segmenter), OWNER, 10) == ()
    assert await store.graph.find_facts([], OWNER, 10) == ()


@pytest.mark.parametrize("text", ['say "hi"', "a*", "NOT", "cat)", "^x", "subject:bea", "'", "-", "%", "_", "\\", "*"])
async def test_no_text_is_taken_for_an_operator(store: Store, segmenter: Segmenter, text: str) -> None:
    await commit(store, "Ann | likes | tea")
    asked = terms(text, segmenter)
    assert not (await store.graph.recall(GraphQuestion([text], asked), OWNER)).relations
    assert not await store.graph.find_facts(asked, OWNER, 5)


async def test_a_snapshot_says_what_is_on_record_now(store: Store) -> None:
    await commit(store, "Ann | lives in | Paris | moved in 2020", "Bea | knows | Ann")
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(time=NOON + 9), OWNER)
    snapshot = await store.graph.snapshot("ANN", OWNER)
    assert snapshot is not None
    assert (snapshot.name, snapshot.text) == ("Ann", "Ann lives in Rome: moved in 2020\nBea knows Ann")
    assert await store.graph.snapshot("Paris", OWNER) is None
    assert await store.graph.snapshot("Ann", ("bea",)) is None


async def test_it_counts_what_it_has(store: Store) -> None:
    await commit(store, "Ann | knows | Bea", "Ann | likes | tea", "Bea | likes | tea", "Ann | lives in | Paris")
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(), OWNER)
    stats = await store.graph.introspect(OWNER)
    assert (stats.entities, stats.relations, stats.superseded) == (4, 4, 1)
    assert stats.busiest[0] == ("Ann", 3)


# Changing


async def test_merging_moves_everything_and_drops_what_says_the_same(store: Store) -> None:
    await commit(store, "Bob | likes | tea", "Robert | likes | tea", "Robert | dislikes | tea", "Ann | knows | Bob")
    await commit(store, "Bob | is also | Robert")
    changed = await store.graph.merge("bob", "robert", OWNER)
    assert (changed.relations, changed.dropped, changed.entities) == (3, 2, 1)
    assert set(await said(store, "robert")) == {"Robert likes tea", "Robert dislikes tea", "Ann knows Robert"}
    assert (await store.graph.introspect(OWNER)).relations == 3
    assert not (await ask(store, "bob")).relations


async def test_what_was_merged_is_found_by_its_new_name(store: Store, segmenter: Segmenter) -> None:
    await commit(store, "Bob | likes | tea", "Robert | likes | cake")
    await store.graph.merge("Bob", "Robert", OWNER)
    found = await store.graph.find_facts(terms("robert", segmenter), OWNER, 10)
    assert {each.relation.object for each in found} == {"tea", "cake"}
    assert await store.graph.find_facts(terms("bob", segmenter), OWNER, 10) == ()


async def test_failure_37_merging_what_is_not_there_is_an_error(store: Store) -> None:
    await commit(store, "Ann | likes | tea")
    for source, target, field in (("Bob", "Ann", "source"), ("Ann", "Bob", "target")):
        with pytest.raises(NotFound) as caught:
            await store.graph.merge(source, target, OWNER)
        assert caught.value.field == field
    with pytest.raises(Invalid):
        await store.graph.merge("Ann", " ANN ", OWNER)
    assert await said(store, "ann") == ["Ann likes tea"]


async def test_failure_39_an_edit_keeps_confidence_sentence_and_scenes(store: Store) -> None:
    (old,) = await commit(
        store, "Ann | lives in | Paris | She told me.", confidence=0.6, scenes=("family/ann", "moves")
    )
    corrected = await store.graph.edit(
        Correction(("ann", "LIVES in", "paris"), (None, None, "Rome")), told(source="t2", time=NOON + 60), OWNER
    )
    ((before, after),) = corrected.pairs
    assert corrected.is_new
    assert (before.id, after.statement, after.confidence, after.sentence) == (
        old,
        "Ann lives in Rome",
        0.6,
        "She told me.",
    )
    assert (after.source, after.valid_from) == ("t2", NOON + 60)
    for scene in ("family", "moves"):
        assert [member.id for member in await store.scenes.members(scene, OWNER)] == [after.id]
    found = await ask(store, "ann")
    assert [relation.id for relation in found.relations] == [after.id]
    (former,) = found.former[after.id]
    assert (former.object, former.status, former.valid_to) == ("Paris", "superseded", NOON + 60)


async def test_the_same_edit_twice_changes_nothing_more(store: Store) -> None:
    await commit(store, "Ann | lives in | Paris")
    correction = Correction(("Ann", "lives in", "Paris"), (None, None, "Rome"))
    first = await store.graph.edit(correction, told(source="t2"), OWNER)
    again = await store.graph.edit(correction, told(source="t2"), OWNER)
    assert not again.is_new
    assert [new.id for _, new in again.pairs] == [new.id for _, new in first.pairs]
    assert (await store.graph.introspect(OWNER)).superseded == 1


async def test_an_edit_can_be_taken_back(store: Store) -> None:
    await commit(store, "Ann | lives in | Paris", telling=told(source="t1"))
    there, back = (None, None, "Rome"), (None, None, "Paris")
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), there), told(source="t1"), OWNER)
    await store.graph.edit(Correction(("Ann", "lives in", "Rome"), back), told(source="t1"), OWNER)
    assert await said(store, "ann") == ["Ann lives in Paris"]


async def test_what_was_replaced_is_not_revived_by_telling_it_again_in_the_same_turn(store: Store) -> None:
    await commit(store, "Ann | lives in | Paris", telling=told(source="t1"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(source="t1"), OWNER)
    repeated = await store.graph.commit(facts("Ann | lives in | Paris"), told(source="t1"))
    assert [refused.field for refused in repeated.refused] == ["object"]
    assert len(await commit(store, "Ann | lives in | Paris", telling=told(source="t9"))) == 1


async def test_an_edit_of_the_spelling_changes_the_name_only(store: Store) -> None:
    (id,) = await commit(store, "ann lee | likes | tea")
    spelled = Correction(("ann lee", "likes", "tea"), ("Ann Lee", None, None))
    assert (await store.graph.edit(spelled, told(), OWNER)).is_new
    assert not (await store.graph.edit(spelled, told(), OWNER)).is_new
    (relation,) = (await ask(store, "ann lee")).relations
    assert (relation.id, relation.subject) == (id, "Ann Lee")


async def test_an_edit_of_what_is_not_there_or_to_what_cannot_be_is_an_error(store: Store) -> None:
    await commit(store, "Ann | likes | tea")
    with pytest.raises(NotFound, match="Ann likes cake"):
        await store.graph.edit(Correction(("Ann", "likes", "cake"), (None, None, "pie")), told(), OWNER)
    for new, field in (
        ((None, None, "…"), "new_object"),
        ((None, "", None), "new_relation"),
        (("TEA", None, None), "new_object"),
    ):
        with pytest.raises(Invalid) as caught:
            await store.graph.edit(Correction(("Ann", "likes", "tea"), new), told(), OWNER)
        assert caught.value.field == field
    assert await said(store, "ann") == ["Ann likes tea"]


@pytest.mark.parametrize("hard", [False, True])
async def test_failure_23_deleting_an_entity_leaves_no_fact_about_it(store: Store, hard: bool) -> None:
    ids = await commit(store, *(f"Ann | likes | dish {n}" for n in range(40)), "Bea | knows | Ann", "Bea | likes | tea")
    changed = await store.graph.delete_entity("ANN", OWNER, hard=hard)
    assert (changed.relations, changed.entities, len(changed.examples)) == (41, 41, 5)
    assert await said(store, "ann") == [] and await said(store, "bea") == ["Bea likes tea"]
    assert (await store.graph.introspect(OWNER)).relations == 1
    assert (await store.upkeep.describe(ids[0]) is None) == hard
    if not hard:
        assert (await store.graph.delete_entity("Bea", OWNER)).relations == 1
    with pytest.raises(NotFound):
        await store.graph.delete_entity("nobody", OWNER, hard=hard)


async def test_failure_24_what_is_deleted_is_found_in_no_way(store: Store, segmenter: Segmenter) -> None:
    await commit(store, "Ann | likes | tea | with cinnamon")
    (candidate,) = await store.graph.find_facts(terms("cinnamon", segmenter), OWNER, 5)
    await store.graph.purge(Criteria(subject="Ann"), OWNER)
    assert await store.graph.find_facts(terms("cinnamon", segmenter), OWNER, 5) == ()
    assert await store.graph.facts_by_number([candidate.number], OWNER) == {}
    assert await store.graph.snapshot("Ann", OWNER) is None
    assert all(item.kind != "relation" for item in await store.vectors.queued(10))
    assert len(await commit(store, "Ann | likes | tea")) == 1
    assert len(await store.graph.find_facts(terms("tea", segmenter), OWNER, 5)) == 1


async def test_a_purge_is_exact_unless_it_says_otherwise(store: Store) -> None:
    await commit(store, "Ann | likes | tea", "Anna | likes | tea", "Ann | dislikes | tea", "Ann | likes | ice tea")
    changed = await store.graph.purge(Criteria(subject="ann", type="likes", object="tea"), OWNER)
    assert (changed.relations, changed.examples) == (1, ("Ann likes tea",))
    assert (await store.graph.purge(Criteria(object_contains="tea", type="likes"), OWNER)).relations == 2
    assert await said(store, "ann") == ["Ann dislikes tea"]
    assert (await store.graph.purge(Criteria(subject="nobody"), OWNER)).relations == 0


async def test_failure_38_no_character_of_a_purge_means_anything_but_itself(store: Store) -> None:
    await commit(store, "discount | is | 50%", "discount | was | 50 cents", "my_key | is | x1", "mydkey | is | x2")
    assert (await store.graph.purge(Criteria(object_contains="50%"), OWNER)).examples == ("discount is 50%",)
    assert (await store.graph.purge(Criteria(object_contains="%"), OWNER)).relations == 0
    assert (await store.graph.purge(Criteria(subject_contains="my_"), OWNER)).examples == ("my_key is x1",)
    for empty in (Criteria(), Criteria(subject_contains="  ")):
        with pytest.raises(Invalid):
            await store.graph.purge(empty, OWNER)


async def test_a_hard_purge_takes_also_what_was_deleted_and_revives_nothing(store: Store) -> None:
    (old,) = await commit(store, "Ann | lives in | Paris")
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(source="t2"), OWNER)
    await store.graph.purge(Criteria(object="Rome"), OWNER)
    changed = await store.graph.purge(Criteria(object="Rome"), OWNER, hard=True)
    assert changed.relations == 1
    assert await said(store, "ann") == []
    described = await store.upkeep.describe(old)
    assert described is not None and described["status"] == "superseded"


async def test_forgetting_takes_back_the_sentence_that_a_correction_had_inherited(
    store: Store, segmenter: Segmenter
) -> None:
    await store.events.append(an_event("t1"))
    await store.events.append(an_event("t2"))
    await commit(store, "Ann | lives in | Paris | She whispered quokka.", telling=told(source="t1"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(source="t2"), OWNER)
    await store.forgetting.delete(Selection(ids=("t1",)))
    (relation,) = (await ask(store, "ann")).relations
    assert (relation.statement, relation.sentence) == ("Ann lives in Rome", "")
    assert await store.graph.find_facts(terms("quokka", segmenter), OWNER, 5) == ()


async def test_forgetting_the_middle_of_a_chain_leaves_its_end(store: Store) -> None:
    for turn in ("t1", "t2", "t3"):
        await store.events.append(an_event(turn))
    await commit(store, "Ann | lives in | Paris", telling=told(source="t1"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(source="t2"), OWNER)
    await store.graph.edit(Correction(("Ann", "lives in", "Rome"), (None, None, "Oslo")), told(source="t3"), OWNER)
    await store.forgetting.delete(Selection(ids=("t2",)))
    assert await said(store, "ann") == ["Ann lives in Oslo"]
    await store.forgetting.delete(Selection(ids=("t3",)))
    assert await said(store, "ann") == ["Ann lives in Paris"]


async def test_forgetting_revives_no_fact_that_holds_already(store: Store) -> None:
    for turn in ("t1", "t2", "t3"):
        await store.events.append(an_event(turn))
    await commit(store, "Ann | lives in | Paris", telling=told(source="t1"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told(source="t2"), OWNER)
    await commit(store, "Ann | lives in | Paris", telling=told(source="t3"))
    await store.forgetting.delete(Selection(ids=("t2",)))
    assert await said(store, "ann") == ["Ann lives in Paris"]


# Who may see what


async def test_a_fact_is_seen_by_those_whose_it_is(store: Store) -> None:
    await commit(store, "cake | of | ann", telling=told("ann"))
    await commit(store, "cake | of | both", telling=told("ann", "bea"))
    await commit(store, "cake | of | all", telling=told(""))
    for audience, expected in (
        (("ann",), {"ann", "both", "all"}),
        (("bea",), {"both", "all"}),
        (("ann", "bea", "ann"), {"both", "all"}),
        (("carl",), {"all"}),
        (None, {"ann", "both", "all"}),
    ):
        assert {relation.object for relation in (await ask(store, "cake", audience=audience)).relations} == expected


async def test_not_even_the_spelling_of_a_name_tells_of_others(store: Store) -> None:
    await commit(store, "MR. X | is | Spy", telling=told("ann"), subject_type="criminal")
    await commit(store, "mr. x | likes | tea", telling=told("bea"))
    (relation,) = (await ask(store, "mr. x", audience=("bea",))).relations
    assert (relation.subject, relation.subject_type) == ("mr. x", "")


async def test_nothing_of_others_is_counted_or_named(store: Store) -> None:
    await commit(store, "Ann | hides | gold", "Ann | lives in | Paris", telling=told("ann"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told("ann"), ("ann",))
    stats = await store.graph.introspect(("bea",))
    assert (stats.entities, stats.relations, stats.superseded, stats.busiest) == (0, 0, 0, ())
    found = await ask(store, "ann", "gold", audience=("bea",))
    assert (found.relations, found.entities, found.is_named, found.omitted) == ((), (), False, 0)


async def test_nobody_changes_what_is_not_theirs(store: Store, segmenter: Segmenter) -> None:
    mine = ["Ann | hides | gold", "Ann | knows | Carl"]
    await commit(store, *mine, telling=told("ann"))
    with pytest.raises(NotFound):
        await store.graph.delete_entity("Ann", ("bea",))
    with pytest.raises(NotFound):
        await store.graph.merge("Ann", "Carl", ("bea",))
    with pytest.raises(NotFound):
        await store.graph.edit(Correction(("Ann", "hides", "gold"), (None, None, "tin")), told("bea"), ("bea",))
    assert (await store.graph.purge(Criteria(subject="Ann"), ("bea",), hard=True)).relations == 0
    await commit(store, "Ann | likes | tea", "Annie | likes | jam", telling=told("bea"))
    assert (await store.graph.merge("Ann", "Annie", ("bea",))).relations == 1
    assert (await store.graph.delete_entity("Annie", ("bea",), hard=True)).relations == 2
    assert sorted(await said(store, "ann", audience=("ann",))) == ["Ann hides gold", "Ann knows Carl"]
    assert len(await store.graph.find_facts(terms("gold", segmenter), ("ann",), 5)) == 1


async def test_a_corrected_fact_keeps_its_audience(store: Store) -> None:
    await commit(store, "Ann | lives in | Paris", telling=told("ann", "bea"))
    await store.graph.edit(Correction(("Ann", "lives in", "Paris"), (None, None, "Rome")), told("ann"), ("ann",))
    for audience, expected in ((("bea",), ["Ann lives in Rome"]), (("carl",), [])):
        assert await said(store, "ann", audience=audience) == expected


async def test_a_thousand_questions_of_ten_people_return_no_fact_of_another(store: Store, segmenter: Segmenter) -> None:
    dice = random.Random(11)
    people = [f"person{n}" for n in range(10)]
    names = [f"name{n}" for n in range(100)]
    owners: dict[str, set[str]] = {}
    for number in range(200):
        sees = dice.sample(people, dice.choice([1, 1, 1, 2, 3]))
        subject, object = dice.sample(names, 2)
        fact = Fact(subject, "knows", object, f"secret{number} {dice.choice(names)}")
        for id in (await store.graph.commit([fact], told(*sees, source=f"t{number}"))).new:
            owners[id] = set(sees)
    answers = 0
    for number in range(1_000):
        audience = tuple(dice.sample(people, dice.choice([1, 1, 2])))
        name = dice.choice(names)
        asked = terms(f"{name} secret{number % 200}", segmenter)
        found = await store.graph.recall(GraphQuestion([name], asked, depth=3, relations=50), audience)
        by_words = await store.graph.find_facts(asked, audience, 50)
        snapshot = await store.graph.snapshot(name, audience)
        ids = [
            *(relation.id for relation in found.relations),
            *(each.relation.id for each in by_words),
            *(snapshot.relations if snapshot else ()),
        ]
        assert all(owners[id].issuperset(audience) for id in ids)
        if number % 20 == 0:
            seen = [id for id in owners if owners[id].issuperset(audience)]
            assert (await store.graph.introspect(audience)).relations == len(seen)
        answers += len(ids)
    assert answers > 1_000
