"""What any store of scenes must do: notice what recurs, keep what was declared apart, let go of what is not seen."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from homeagent_sdk.errors import Invalid, NotFound
from memory_service.graph.model import Fact, Observed, Telling
from memory_service.graph.scene_keys import HALF_LIFE_S, MAX_FEATURES, fingerprint, key_of, similarity
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event

OWNER = ("owner",)
MORNING = ("chan:webui", "peer:ann", "topic:garden", "part:morning")


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(store.scenes, "_now", clock)
    return store


async def see(store: Store, features: Iterable[str], audience: tuple[str, ...] = OWNER) -> Observed:
    return await store.scenes.observe(features, audience, False)


async def members(store: Store, key: str, audience: tuple[str, ...] = OWNER) -> dict[str, float]:
    return {member.id: member.weight for member in await store.scenes.members(key, audience)}


async def put(store: Store, scene: str, event: str, weight: float = 1.0) -> None:
    await store.events.append(an_event(event))
    await store.scenes.declare(scene, OWNER, False)
    await store.scenes.join(scene, "event", event, weight, OWNER, False)


def test_failure_53_a_key_has_one_spelling() -> None:
    spellings = ("chan:QQ / Group+7", "chan:qq/group_7", "CHAN:QQ//group+7/", "ｃｈａｎ：ｑｑ/group 7")
    assert {key_of(spelling) for spelling in spellings} == {"chan:qq/group_7"}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("chan:a", "part:night"), ("chan:a", "part:morning"), 0.714),
        (("chan:a", "topic:x", "topic:y"), ("chan:a", "topic:x", "topic:z"), 0.636),
        (("chan:a", "group:1", "part:night"), ("chan:a", "group:2", "part:night"), 0.375),
        (("chan:a",), ("chan:a",), 1.0),
        (("chan:a",), (), 0.0),
    ],
)
def test_similarity_weighs_what_is_shared(one: tuple[str, ...], other: tuple[str, ...], expected: float) -> None:
    assert similarity(fingerprint(one), fingerprint(other)) == pytest.approx(expected, abs=0.001)


async def test_what_occurs_twice_is_a_scene_and_the_third_time_strengthens_it(store: Store) -> None:
    assert await see(store, MORNING) == Observed(None)
    assert await see(store, MORNING) == Observed("auto:chan:webui+peer:ann", is_founded=True)
    assert await see(store, MORNING) == Observed("auto:chan:webui+peer:ann")
    ((scene, likeness),) = await store.scenes.evoked(MORNING, OWNER)
    assert (scene.strength, scene.origin, likeness) == (2, "emergent", pytest.approx(1.0))


async def test_failure_54_part_of_day_is_not_what_a_scene_is(store: Store) -> None:
    for _ in range(2):
        await see(store, ("part:morning", "topic:garden"))
    assert await store.scenes.evoked(("part:morning",), OWNER) == ()
    for _ in range(2):
        await see(store, ("chan:webui", "part:morning"))
    assert (await see(store, ("chan:webui", "part:evening"))).key == "auto:chan:webui"


async def test_failure_57_founding_a_scene_leaves_the_evidence_of_others(store: Store) -> None:
    await see(store, ("chan:mail", "peer:bea"))
    for _ in range(2):
        await see(store, MORNING)
    assert (await see(store, ("chan:mail", "peer:bea"))).is_founded


async def test_failure_55_a_declared_scene_swallows_no_turn(store: Store) -> None:
    for count in (1, 2):
        scene = await store.scenes.declare("chan:webui", OWNER, False)
        assert (scene.key, scene.origin, scene.strength) == ("chan:webui", "declared", count)
    assert await store.scenes.evoked(("chan:webui",), OWNER) == ()
    assert (await see(store, ("chan:webui",))).key is None
    assert (await see(store, ("chan:webui",))).key == "auto:chan:webui"


async def test_two_groups_are_two_scenes_and_a_taken_key_gets_a_number(store: Store) -> None:
    for group in ("group:1", "group:2"):
        for _ in range(2):
            founded = await see(store, ("chan:qq", group, "part:night"))
        assert founded.is_founded
    for _ in range(2):
        many = await see(store, ("chan:qq", "group:1", *(f"topic:{n}" for n in range(20))))
    assert many == Observed("auto:chan:qq+group:1.2", is_founded=True)


async def test_a_scene_has_no_more_features_than_allowed(store: Store) -> None:
    topics = [f"topic:{n}" for n in range(60)]
    assert len(fingerprint(("chan:a", "peer:b", *topics))) == MAX_FEATURES
    assert {"chan:a", "peer:b"} <= fingerprint((*topics, "chan:a", "peer:b")).keys()


async def test_a_key_finds_what_is_narrower_and_nothing_that_only_looks_like_it(store: Store) -> None:
    await put(store, "chan:qq", "t1")
    await put(store, "chan:qq/group_7", "t2", 0.5)
    await put(store, "chan:qq2", "t3")
    await put(store, "chan:qq0", "t4")
    assert await members(store, "chan:QQ") == {"t1": 1.0, "t2": 0.5}
    assert await members(store, "chan:qq/group 7") == {"t2": 0.5}
    assert await members(store, "chan") == {}


async def test_of_two_weights_the_greater_stays(store: Store) -> None:
    for weight in (0.4, 0.9, 0.2):
        await put(store, "moves", "t1", weight)
    assert await members(store, "moves") == {"t1": 0.9}


async def test_failure_56_weights_are_halved_once_in_a_half_life_and_only_if_the_scene_is_not_seen(
    store: Store, clock: Clock
) -> None:
    await put(store, "old", "t1", 0.15)
    await put(store, "seen", "t2")
    for _ in range(24):
        clock.now += HALF_LIFE_S / 24 - 1
        assert await store.scenes.decay() == 0
    assert await members(store, "old") == {"t1": 0.15}
    clock.now += 25
    await store.scenes.declare("seen", OWNER, False)
    for _ in range(5):
        await store.scenes.decay()
    assert await members(store, "old") == {"t1": 0.075}
    assert await members(store, "seen") == {"t2": 1.0}
    clock.now += HALF_LIFE_S
    assert await store.scenes.decay() == 1
    assert await members(store, "old") == {}


async def test_features_that_are_not_seen_fade_so_that_a_scene_stays_like_itself(store: Store, clock: Clock) -> None:
    for topic in ("a", "a", "b"):
        await see(store, ("chan:webui", f"topic:{topic}"))
    before = (await store.scenes.evoked(("chan:webui",), OWNER))[0][1]
    clock.now += HALF_LIFE_S + 1
    await see(store, ("chan:webui",))
    await store.scenes.decay()
    after = (await store.scenes.evoked(("chan:webui",), OWNER))[0][1]
    assert (before, after) == (pytest.approx(1 / 1.8), pytest.approx(1 / 1.4))


async def test_a_scene_of_which_nothing_is_left_goes(store: Store, clock: Clock) -> None:
    for _ in range(2):
        await see(store, ("chan:webui",))
    for _ in range(6):
        clock.now += HALF_LIFE_S + 1
        await store.scenes.decay()
    assert await store.scenes.evoked(("chan:webui",), OWNER) == ()
    assert (await see(store, ("chan:webui",))) == Observed(None)


async def test_facts_that_are_deleted_are_members_no_more(store: Store) -> None:
    fact = Fact("Ann", "likes", "tea", scenes=("chan:webui",))
    (id,) = (await store.graph.commit([fact], Telling("owner", OWNER, False, NOON, "model"))).new
    assert await members(store, "chan:webui") == {id: 1.0}
    await store.graph.delete_entity("Ann", OWNER)
    assert await members(store, "chan:webui") == {}


async def test_scenes_are_seen_by_those_whose_they_are(store: Store) -> None:
    await put(store, "moves", "t1")
    for _ in range(2):
        await see(store, MORNING)
    assert await members(store, "moves", ("bea",)) == {}
    assert await store.scenes.evoked(MORNING, ("bea",)) == ()
    assert await see(store, MORNING, ("bea",)) == Observed(None)
    with pytest.raises(NotFound):
        await store.scenes.join("moves", "event", "t1", 1.0, ("bea",), False)


async def test_what_cannot_be_is_refused(store: Store) -> None:
    for key in ("", "//", "x" * 97, "+"):
        with pytest.raises(Invalid):
            await store.scenes.declare(key, OWNER, False)
    await store.scenes.declare("moves", OWNER, False)
    for kind, weight in (("event", 0.0), ("event", 1.5), ("media", 1.0)):
        with pytest.raises(Invalid):
            await store.scenes.join("moves", kind, "t1", weight, OWNER, False)
    with pytest.raises(NotFound):
        await store.scenes.join("moves", "event", "absent", 1.0, OWNER, False)
