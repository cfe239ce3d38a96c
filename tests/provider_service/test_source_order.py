"""Sources are read from the configuration and asked in order."""

import asyncio

import pytest

from homeagent_sdk.errors import NotFound
from provider_service.errors import CallFailed, Fault
from provider_service.source import Source, source_from_environment, sources_from_entries
from provider_service.sources import Slots, Sources


def source(name, **values):
    return Source(**{"name": name, "base_url": "http://x/v1", "model": f"model-{name}", **values})


def names(entries):
    return [entry.source.name for entry in entries]


@pytest.fixture
def sources():
    made = Sources()
    made.replace([source("b"), source("a", vision=True), source("high", priority=5), source("env", priority=-9)])
    return made


def test_the_environment_goes_first_then_priority_then_name(sources):
    assert names(sources.candidates("auto")) == ["env", "high", "a", "b"]


@pytest.mark.parametrize("model", ["model-b", "b"])
def test_the_exact_model_goes_first_and_the_others_follow(sources, model):
    assert names(sources.candidates(model)) == ["b", "env", "high", "a"]


def test_an_unknown_model_is_not_found(sources):
    with pytest.raises(NotFound) as caught:
        sources.candidates("gpt-9")
    assert caught.value.field == "model"
    assert "model-high" in str(caught.value)


def test_who_sees_images_goes_first_when_there_are_any(sources):
    assert names(sources.candidates("auto", with_images=True)) == ["a", "env", "high", "b"]


def test_a_resting_source_is_left_out_until_it_is_the_only_one(sources):
    for entry in sources.in_order():
        entry.health.failed(CallFailed(Fault.OTHER, "down"), entry.health.starts())
        if entry.source.name == "a":
            break
    assert names(sources.candidates("auto")) == ["b"]


def test_a_source_that_did_not_change_keeps_its_health(sources):
    for entry in sources.in_order():
        entry.health.failed(CallFailed(Fault.KEY, "no"), 0)
    changed = sources.replace([source("b"), source("a", context_window=9)])
    assert sorted(changed) == ["a", "env", "high"]
    assert {e.source.name: e.health.state for e in sources.in_order()} == {"a": "ready", "b": "bad_key"}


def entries(**fields):
    return [{"key": f"core.llm.sources.{key.replace('__', '.')}", "value": value} for key, value in fields.items()]


def test_sources_are_read_from_entries_of_any_type():
    given = entries(
        k__base_url="https://api/v1/",
        k__model="m",
        k__adapter="",
        k__context_window="64000",
        k__max_concurrent=2,
        k__priority=None,
        k__vision="true",
        k__tools=False,
        k__unknown=1,
    )
    given += [{"key": "core.llm.temperature", "value": 1}, {"key": "core.llm.sources.a.b.model", "value": "x"}]
    (read,) = sources_from_entries(given)
    expected = Source("k", "https://api/v1", "m", context_window=64000, max_concurrent=2, vision=True, tools=False)
    assert read == expected


def test_a_source_without_address_and_model_is_none():
    assert sources_from_entries(entries(k__context_window=5, k__base_url="", k__model="null")) == []


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://"}, "base_url"),
        ({"base_url": "http://x:99999"}, "base_url"),
        ({"base_url": "http://me:pw@x/v1"}, "password"),
        ({"model": ""}, "model"),
        ({"adapter": "../x"}, "adapter"),
    ],
)
def test_a_source_that_makes_no_sense_is_listed_and_not_asked(values, word):
    sources = Sources()
    sources.replace([source("a", **values)])
    assert sources.candidates("auto") == []
    (listed,) = sources.listing(lambda name: False)
    assert listed["state"] == "stopped"
    assert word in listed["reason"]


def test_the_listing_shows_no_query_of_the_address():
    sources = Sources()
    sources.replace([source("a", base_url="http://x/v1?key=hidden")])
    assert sources.listing(lambda name: True)[0]["base_url"] == "http://x/v1"


def test_the_environment_defines_a_source():
    assert source_from_environment({}) is None
    environ = {
        "HOMEAGENT_LLM_BASE_URL": "http://x/v1",
        "HOMEAGENT_LLM_MODEL": "m",
        "HOMEAGENT_LLM_CONTEXT_WINDOW": "9000",
    }
    assert source_from_environment(environ) == Source("env", "http://x/v1", "m", context_window=9000)
    incomplete = source_from_environment({"HOMEAGENT_LLM_MODEL": "m"})
    assert incomplete is not None and incomplete.problem() is not None


async def test_the_wait_for_a_slot_is_bounded_in_time_and_number():
    slots = Slots(1)
    async with slots.take():
        with pytest.raises(CallFailed) as caught:
            async with slots.take(0.01):
                raise AssertionError
        assert caught.value.fault is Fault.BUSY
        waiting = [asyncio.ensure_future(slots.take(5).__aenter__()) for _ in range(8)]
        await asyncio.sleep(0)
        with pytest.raises(CallFailed):
            async with slots.take(5):
                raise AssertionError
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
