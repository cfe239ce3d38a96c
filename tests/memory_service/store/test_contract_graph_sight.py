"""What any graph must do for those who share it: nobody sees, counts or changes the facts of others."""

from __future__ import annotations

import random

import pytest

from homeagent_sdk.errors import NotFound
from memory_service.graph.model import (
    Correction,
    Criteria,
    Fact,
    GraphQuestion,
)
from memory_service.store.abc import Store
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter
from tests.memory_service.store.facts import ask, commit, said, told


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
