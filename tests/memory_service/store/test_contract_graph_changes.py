"""What any graph must do when facts change: exactly what was asked, and what it says it did; forgetting too."""

from __future__ import annotations

import random

import pytest

from homeagent_sdk.errors import Invalid, NotFound
from memory_service.graph.model import Correction, Criteria, Fact
from memory_service.model import Selection
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.samples import NOON, an_event
from tests.memory_service.store.facts import OWNER, ask, commit, facts, said, told


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


async def test_whatever_is_done_the_store_stays_in_order(store: Store) -> None:
    dice = random.Random(3)
    names, people = [f"name{n}" for n in range(12)], ("owner", "ann")

    def some() -> tuple[str, str, str]:
        subject, object = dice.sample(names, 2)
        return subject, dice.choice(["knows", "likes"]), object

    for number in range(250):
        turn, who = f"t{number}", (dice.choice(people),)
        telling = told(*who, source=turn, time=NOON + number)
        what = dice.choice(["commit", "commit", "commit", "edit", "merge", "delete", "purge", "forget"])
        try:
            if what == "commit":
                scenes = ("moves",) if number % 3 == 0 else ()
                await store.graph.commit([Fact(*some(), scenes=scenes) for _ in range(3)], telling)
                await store.events.append(an_event(turn, sees=who, principal=who[0]))
            elif what == "edit":
                await store.graph.edit(Correction(some(), (None, None, dice.choice(names))), telling, who)
            elif what == "merge":
                await store.graph.merge(*dice.sample(names, 2), who)
            elif what == "delete":
                await store.graph.delete_entity(dice.choice(names), who, hard=number % 2 == 0)
            elif what == "purge":
                subject, type, _ = some()
                await store.graph.purge(Criteria(subject=subject, type=type), who, hard=number % 2 == 0)
            else:
                await store.forgetting.delete(Selection(ids=(f"t{dice.randrange(number + 1)}",)))
        except (NotFound, Invalid):
            continue
    report = await store.upkeep.verify(lambda done, of: None)
    assert report.ok, [check for check in report.checks if not check.ok]
    assert (await store.graph.introspect(None)).relations > 5
