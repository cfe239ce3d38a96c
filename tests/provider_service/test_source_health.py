"""How long a source rests after a failure."""

import pytest

from provider_service.errors import CallFailed, Fault
from provider_service.source_health import LONGEST_REST_S, SourceHealth


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return SourceHealth(clock)


def fail(health, fault=Fault.OTHER, **more):
    health.failed(CallFailed(fault, "because", **more), health.starts())


def test_the_rest_doubles_to_half_an_hour_and_stays_there(health, clock):
    rests = []
    for _ in range(100):
        fail(health)
        rests.append(health.rest_s)
        clock.now += health.rest_s + 1
    assert rests[:8] == [30, 60, 120, 240, 480, 960, 1800, 1800]
    assert set(rests[7:]) == {LONGEST_REST_S}


def test_a_success_ends_the_counting(health, clock):
    for _ in range(3):
        fail(health)
        clock.now += 3600
    health.succeeded()
    fail(health)
    assert health.rest_s == 30


def test_calls_that_one_outage_ended_count_once(health, clock):
    starts = [health.starts() for _ in range(5)]
    clock.now += 10
    for started in starts:
        health.failed(CallFailed(Fault.OTHER, "down"), started)
    assert health.rest_s == 30


def test_a_source_rests_as_long_as_it_asked(health, clock):
    fail(health, Fault.RATE, retry_after_s=7)
    assert (health.state, health.rest_s, health.reason) == ("cooling", 7, "because")
    clock.now += 6.9
    assert health.state == "cooling"
    clock.now += 0.2
    assert (health.state, health.reason) == ("ready", "")


def test_a_bad_key_stays_bad(health, clock):
    fail(health, Fault.KEY)
    clock.now += 1e9
    assert health.state == "bad_key"
    fail(health, Fault.OTHER)
    assert health.state == "bad_key"
    assert not health.may_be_probed


def test_a_refused_model_stops_the_source_and_not_the_key(health, clock):
    fail(health, Fault.MODEL)
    assert health.state == "stopped"
    clock.now += 1801
    assert health.state == "ready"


@pytest.mark.parametrize("fault", [Fault.CONTEXT, Fault.REQUEST, Fault.BUSY, Fault.ADAPTER])
def test_what_is_not_its_fault_is_not_held_against_a_source(health, fault):
    fail(health, fault)
    assert health.state == "ready"


def test_a_resting_source_may_be_probed_every_two_seconds(health, clock):
    fail(health)
    assert not health.may_be_probed
    clock.now += 2
    assert health.may_be_probed
    health.starts()
    assert not health.may_be_probed


def test_who_asked_to_be_left_alone_is_left_alone(health, clock):
    fail(health, Fault.RATE)
    clock.now += 20
    assert not health.may_be_probed
