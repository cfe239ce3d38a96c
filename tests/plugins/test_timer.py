from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Denied, Invalid, Overloaded, Unavailable
from homeagent_sdk.testing import FakeKernel
from plugins.timer import scheduler as scheduling
from plugins.timer.main import plugin
from plugins.timer.scheduler import Scheduler
from plugins.timer.store import Timer, TimerStore
from plugins.timer.times import check_repeat, next_due, parse_moment

FOLDER = Path(__file__).parent.parent.parent / "plugins" / "timer"


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place where the clocks change."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("HOMEAGENT_LANG", "en")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-12-24T18:00", "2026-12-24T18:00:00+01:00"),
        ("2026-12-24 18:00:30", "2026-12-24T18:00:30+01:00"),
        ("2026-12-24T18:00Z", "2026-12-24T18:00:00+00:00"),
        ("2026-12-24T18:00+08:00", "2026-12-24T18:00:00+08:00"),
        ("13:00", "2026-11-30T13:00:00+01:00"),
        ("11:00", "2026-12-01T11:00:00+01:00"),
        ("12:00", "2026-12-01T12:00:00+01:00"),
    ],
)
def test_a_time_is_iso_or_a_time_of_day(text: str, meant: str) -> None:
    assert parse_moment(text, at("2026-11-30T12:00")) == at(meant)


@pytest.mark.parametrize("text", ["soon", "25:00", "2026-13-01", "", "12"])
def test_what_is_no_time_is_refused_with_the_present_time_as_a_hint(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_moment(text, at("2026-11-30T12:00"))
    assert "2026-11-30T12:00:00+01:00" in str(caught.value)


@pytest.mark.parametrize("text", ["10s", "0", "hourly", ""])
def test_a_repetition_is_at_least_a_minute(text: str) -> None:
    with pytest.raises(Invalid):
        check_repeat(text)


def test_daily_keeps_the_time_of_day_when_the_clocks_change() -> None:
    due = at("2027-03-27T08:00")
    assert next_due(due, "daily", due) == at("2027-03-28T08:00")
    assert at("2027-03-28T08:00") - due == 23 * 3600


@pytest.mark.parametrize(
    ("repeat", "now", "then"),
    [
        ("daily", "2026-12-05T09:00", "2026-12-06T08:00"),
        ("daily", "2036-12-05T07:00", "2036-12-05T08:00"),
        ("weekly", "2026-12-05T09:00", "2026-12-07T08:00"),
        ("1h", "2026-11-30T08:00", "2026-11-30T09:00"),
        ("1h", "2026-11-30T11:30", "2026-11-30T12:00"),
    ],
)
def test_times_that_were_missed_are_left_out(repeat: str, now: str, then: str) -> None:
    assert next_due(at("2026-11-30T08:00"), repeat, at(now)) == at(then)


# -- the store --------------------------------------------------------------------------------------------------------


def timer(due: float, message: str = "tea", repeat: str = "", principal: str = "owner") -> Timer:
    return Timer(0, due, repeat, message, "cli", "c1", principal)


def test_the_same_call_made_again_sets_one_timer(tmp_path: Path) -> None:
    store = TimerStore(tmp_path / "t.db")
    first = store.add(timer(1.5), "turn/call", 10)
    assert first is not None and store.add(timer(2.5), "turn/call", 10) == first
    store.close()


def test_ids_are_never_used_again(tmp_path: Path) -> None:
    store = TimerStore(tmp_path / "t.db")
    first = store.add(timer(1.0), "a", 10)
    assert first is not None
    store.fired(first, None)
    second = store.add(timer(1.0), "b", 10)
    assert second is not None and second.delivery_id != first.delivery_id
    store.close()


# -- firing -----------------------------------------------------------------------------------------------------------


class Clockwork:
    """A scheduler with a clock of its own and an agent that does what the test says."""

    def __init__(self, path: Path) -> None:
        self.store = TimerStore(path)
        self.wall = 1000.0
        self.taken: list[tuple[str, str, float]] = []
        self.errors: list[Exception] = []
        self._new = asyncio.Event()
        self.scheduler = Scheduler(self.store, self._submit, lambda: self.wall)

    async def _submit(self, timer: Timer, late_s: float) -> None:
        if self.errors:
            self._new.set()
            raise self.errors.pop(0)
        self.taken.append((timer.message, timer.delivery_id, late_s))
        self._new.set()

    def add(self, due: float, message: str = "tea", repeat: str = "") -> Timer:
        added = self.store.add(timer(due, message, repeat), f"{message}/{due}", 100)
        assert added is not None
        return added

    async def next(self) -> None:
        async with asyncio.timeout(5):
            await self._new.wait()
        self._new.clear()

    async def advance(self, to: float) -> None:
        self.wall = to
        self.scheduler.wake()
        await self.next()


@pytest.fixture
async def clockwork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clockwork]:
    monkeypatch.setattr(scheduling, "_FIRST_PAUSE_S", 0.001)
    works = Clockwork(tmp_path / "t.db")
    yield works
    await works.scheduler.stop()
    works.store.close()


async def test_a_timer_fires_when_it_is_due_and_then_is_gone(clockwork: Clockwork) -> None:
    clockwork.add(1100.0)
    clockwork.scheduler.start()
    await asyncio.sleep(0.02)
    assert clockwork.taken == []
    await clockwork.advance(1100.0)
    await until(lambda: clockwork.store.waiting() == [])
    assert clockwork.taken == [("tea", "timer-1-1100.000", 0.0)]


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_overdue_timers_fire_once_at_start_and_say_how_late(clockwork: Clockwork) -> None:
    clockwork.add(100.0, "daily things", "1h")
    clockwork.wall = 100.0 + 5 * 3600 + 60
    clockwork.scheduler.start()
    await clockwork.next()
    await until(lambda: clockwork.store.waiting()[0].due > clockwork.wall)
    assert [late for _, _, late in clockwork.taken] == [5 * 3600 + 60]
    assert clockwork.store.waiting()[0].due == 100.0 + 6 * 3600


async def test_a_timer_that_the_agent_cannot_take_now_is_kept_and_tried_again(clockwork: Clockwork) -> None:
    clockwork.add(1000.0)
    clockwork.errors = [Unavailable("restarting"), Overloaded("queue full")]
    clockwork.scheduler.start()
    await until(lambda: clockwork.taken)
    await until(lambda: clockwork.store.waiting() == [])
    assert len(clockwork.taken) == 1


async def test_one_that_the_agent_refuses_is_kept_with_the_reason_and_holds_up_no_other(clockwork: Clockwork) -> None:
    clockwork.add(999.0, "refused")
    clockwork.errors = [Denied("the principal is gone")]
    clockwork.scheduler.start()
    await clockwork.next()
    clockwork.add(1000.0, "tea")
    await clockwork.advance(1000.0)
    assert [message for message, _, _ in clockwork.taken] == ["tea"]
    assert "principal is gone" in clockwork.store.of("owner")[0].problem


async def test_a_clock_that_was_set_forward_is_noticed(clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "LONGEST_SLEEP_S", 0.01)
    clockwork.add(5000.0)
    clockwork.scheduler.start()
    await asyncio.sleep(0)
    clockwork.wall = 6000.0
    await clockwork.next()
    assert len(clockwork.taken) == 1


async def test_a_database_that_fails_for_a_while_does_not_end_the_firing(
    clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "LONGEST_SLEEP_S", 0.01)
    working = clockwork.store.waiting
    failures = [sqlite3.OperationalError("disk I/O error")]

    def waiting() -> list[Timer]:
        if failures:
            raise failures.pop()
        return working()

    monkeypatch.setattr(clockwork.store, "waiting", waiting)
    clockwork.add(1000.0)
    clockwork.scheduler.start()
    await clockwork.next()
    assert len(clockwork.taken) == 1


# -- the plugin -------------------------------------------------------------------------------------------------------


async def set_timer(kernel: FakeKernel, call: str = "call-1", principal: str = "owner", **arguments: Any) -> Any:
    context = {"call_id": call, "principal": principal}
    return await kernel.call_tool("timer", "timer_set", arguments, **context)


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[FakeKernel]:
    kernel = FakeKernel()
    async with kernel.run(plugin, FOLDER, tmp_path):
        yield kernel


async def submitted(kernel: FakeKernel, count: int = 1) -> None:
    await until(lambda: len(kernel.submissions) >= count)


async def test_a_timer_comes_back_into_the_lane_that_it_was_set_from(kernel: FakeKernel) -> None:
    answer = await kernel.call_tool(
        "timer", "timer_set", {"message": "turn off the oven", "duration": "0.05s"}, channel="webui", conversation="k"
    )
    assert answer["content"]["message"] == "turn off the oven"
    await submitted(kernel)
    body = kernel.submissions[0]
    assert (body["channel"], body["conversation"], body["principal"]) == ("webui", "k", "owner")
    assert (body["kind"], body["level"]) == ("self", "L3")
    assert body["text"] == "Timer 1, set earlier in this conversation, is due now: turn off the oven"
    assert body["delivery_id"].startswith("timer-1-")


async def test_people_see_and_cancel_their_own_timers_only(kernel: FakeKernel) -> None:
    await set_timer(kernel, message="mine", duration="1h", call="a")
    await set_timer(kernel, message="hers", at="2027-01-01T00:00", call="b", principal="member")
    listed = (await kernel.call_tool("timer", "timer_list"))["content"]
    assert [entry["message"] for entry in listed["timers"]] == ["mine"]
    assert listed["timers"][0]["in"] in ("1h", "59m59s")
    refused = await kernel.call_tool("timer", "timer_cancel", {"id": 2})
    assert refused["error"]["reason"] == "not_found"
    assert (await kernel.call_tool("timer", "timer_cancel", {"id": "1"}))["content"] == "cancelled: mine"
    assert (await kernel.call_tool("timer", "timer_list"))["content"]["timers"] == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"message": "x"}, "duration"),
        ({"message": "x", "duration": "1h", "at": "18:00"}, "at"),
        ({"message": "x", "duration": "soon"}, "duration"),
        ({"message": "x", "at": "2001-01-01"}, "at"),
        ({"message": "x", "duration": "400d"}, "duration"),
        ({"message": "x", "at": "2099-01-01"}, "at"),
        ({"message": "x", "duration": "1h", "repeat": "5s"}, "repeat"),
        ({"message": " ", "duration": "1h"}, "message"),
        ({"message": "x" * 2001, "duration": "1h"}, "message"),
        ({"duration": "1h"}, "message"),
    ],
)
async def test_what_cannot_be_set_is_refused_with_its_field(
    kernel: FakeKernel, arguments: dict[str, Any], field: str
) -> None:
    answer = await set_timer(kernel, **arguments)
    assert answer["is_error"] and answer["error"]["field"] == field


async def test_the_number_of_timers_is_bounded(kernel: FakeKernel) -> None:
    await kernel.set_setting("timer", "max_timers", 1)
    assert not (await set_timer(kernel, message="a", duration="1h", call="a"))["is_error"]
    answer = await set_timer(kernel, message="b", duration="1h", call="b")
    assert answer["error"]["reason"] == "overloaded" and "timer_cancel" in answer["error"]["hint"]


async def test_how_far_ahead_is_a_setting(kernel: FakeKernel) -> None:
    await kernel.set_setting("timer", "max_duration", "30m")
    assert "30m" in (await set_timer(kernel, message="a", duration="31m"))["error"]["hint"]


async def test_a_repetition_alone_begins_with_its_first_time(kernel: FakeKernel) -> None:
    answer = await set_timer(kernel, message="water", repeat="2h")
    assert answer["content"]["repeat"] == "2h" and answer["content"]["in"] in ("2h", "1h59m59s", "1h59m60s")
    past = await set_timer(kernel, message="standup", at="2020-01-06T09:00", repeat="daily", call="b")
    assert "T09:00:00" in past["content"]["due"], "a first time that is over, with a repetition, means the next one"


async def test_a_timer_that_came_due_while_nothing_ran_fires_at_start(tmp_path: Path) -> None:
    store = TimerStore(tmp_path / "timers.db")
    store.add(timer(time.time() - 7200, "call mother"), "t/c", 10)
    store.close()
    kernel = FakeKernel()
    async with kernel.run(plugin, FOLDER, tmp_path):
        await submitted(kernel)
    assert "comes 2h late: call mother" in kernel.submissions[0]["text"]


async def test_a_crash_after_the_agent_took_it_does_not_fire_twice(tmp_path: Path) -> None:
    """The agent accepts; the process dies before it deletes the timer; the next start submits it again."""
    store = TimerStore(tmp_path / "timers.db")
    added = store.add(timer(time.time() - 1), "t/c", 10)
    assert added is not None
    kernel = FakeKernel()
    async with kernel.run(plugin, FOLDER, tmp_path):
        await submitted(kernel)
        await until(lambda: store.of("owner") == [])
    restored = sqlite3.connect(tmp_path / "timers.db")
    columns = (added.id, added.due, "", added.message, "cli", "c1", "owner", "t/c")
    restored.execute(
        "INSERT INTO timers (id, due, repeat, message, channel, conversation, principal, origin)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        columns,
    )
    restored.commit()
    restored.close()
    async with kernel.run(plugin, FOLDER, tmp_path):
        await until(lambda: store.of("owner") == [])
    store.close()
    assert len(kernel.submissions) == 1, "the second delivery is a duplicate of the first"


async def test_the_kernel_being_away_delays_a_timer_and_loses_none(kernel: FakeKernel) -> None:
    kernel.submit_errors = [Unavailable("restarting")]
    await set_timer(kernel, message="tea", duration="0s")
    await submitted(kernel)
    assert len(kernel.submissions) == 1
