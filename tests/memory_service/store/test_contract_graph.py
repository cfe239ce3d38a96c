"""What any graph must do: each fact once, from turns and documents, found by names and words."""

from __future__ import annotations

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound
from memory_service.graph.model import (
    MAX_FACTS,
    RECENT,
    Correction,
    Fact,
    GraphQuestion,
)
from memory_service.model import Note, Selection
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event
from tests.memory_service.store.facts import OWNER, ask, commit, facts, said, told

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
