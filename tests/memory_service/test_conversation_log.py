"""The readable log of conversations holds every event once, in the order in which they were stored."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Unavailable
from memory_service import conversation_log as module
from memory_service.conversation_log import ConversationLog
from memory_service.model import LogPosition, Selection
from memory_service.store.abc import Store
from tests.memory_service.samples import NOON, an_event

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def a_log(store: Store, folder: Path, clock: Clock, **more: Any) -> ConversationLog:
    log = ConversationLog(store.log, folder, wall_clock=clock, **more)
    log._is_on = True
    return log


@pytest.fixture
def log(store: Store, folder: Path, clock: Clock) -> ConversationLog:
    return a_log(store, folder, clock)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in files(folder) for line in path.read_text().splitlines()]


def files(folder: Path) -> list[Path]:
    """Return the files in the order in which they were begun."""
    return sorted(folder.glob("*.jsonl"), key=lambda path: (path.name[:10], int(path.stem[11:] or 1)))


def names(folder: Path) -> list[str]:
    """Return the names of everything in the folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def ids(folder: Path) -> list[str]:
    return [line["id"] for line in lines(folder)]


async def happen(store: Store, *numbers: int, **more: Any) -> None:
    for number in numbers:
        await store.events.append(an_event(f"t{number}", f"text {number}", f"reply {number}", **more))


async def test_a_line_has_what_was_said_and_by_whom(store: Store, log: ConversationLog, folder: Path) -> None:
    await happen(store, 1, tools_used=("clock",))
    await log.catch_up()
    (path,) = files(folder)
    assert path.name == time.strftime("%Y-%m-%d.jsonl", time.localtime(NOON))
    assert path.stat().st_mode & 0o777 == 0o600
    (line,) = lines(folder)
    assert line.pop("time").startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOON)))
    assert line == {
        "id": "t1",
        "channel": "webui",
        "conversation": "c1",
        "principal": "owner",
        "speaker": "Ann",
        "text": "text 1",
        "reply": "reply 1",
        "tools": ["clock"],
    }


async def test_every_event_stands_once_in_the_order_of_storing(
    store: Store, log: ConversationLog, folder: Path
) -> None:
    await happen(store, 3, 1)
    await log.catch_up()
    await log.catch_up()
    await happen(store, 2, time=NOON - DAY)
    await log.catch_up()
    assert ids(folder) == ["t3", "t1", "t2"]


async def test_a_new_day_and_a_full_file_begin_another_one(
    store: Store, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(store, folder, clock, most_bytes=500)
    await happen(store, *range(5))
    await log.catch_up()
    clock.now += DAY
    await happen(store, 5)
    await log.catch_up()
    clock.now -= 3 * DAY  # a clock that goes back does not put new lines before old ones
    await happen(store, *range(6, 9))
    await log.catch_up()
    today, tomorrow = (time.strftime("%Y-%m-%d", time.localtime(NOON + days * DAY)) for days in (0, 1))
    assert [path.name for path in files(folder)] == [
        f"{today}.jsonl",
        f"{today}-2.jsonl",
        f"{today}-3.jsonl",
        f"{tomorrow}.jsonl",
        f"{tomorrow}-2.jsonl",
    ]
    assert all(path.stat().st_size <= 500 for path in files(folder))
    assert ids(folder) == [f"t{number}" for number in range(9)]


async def test_a_line_longer_than_a_file_may_be_has_one_of_its_own(store: Store, folder: Path, clock: Clock) -> None:
    log = a_log(store, folder, clock, most_bytes=300)
    for id, text in (("t1", "short"), ("t2", "long " * 100), ("t3", "short")):
        await store.events.append(an_event(id, text))
    await log.catch_up()
    assert [len(path.read_text().splitlines()) for path in files(folder)] == [1, 1, 1]


async def test_more_than_one_batch_is_written(
    store: Store, log: ConversationLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVENTS", 3)
    await happen(store, *range(10))
    await log.catch_up()
    assert ids(folder) == [f"t{number}" for number in range(10)]


async def test_what_a_crash_left_behind_the_confirmed_length_is_written_over(
    store: Store, log: ConversationLog, folder: Path, clock: Clock
) -> None:
    await happen(store, 1)
    await log.catch_up()
    await happen(store, 2)
    with files(folder)[0].open("ab") as file:
        file.write(module.line_of(an_event("t2")) + b'{"id": "t3", "te')
    await a_log(store, folder, clock).catch_up()
    assert ids(folder) == ["t1", "t2"]


class Died(Exception):
    pass


@pytest.mark.parametrize("at", range(1, 8))
async def test_it_goes_on_wherever_it_was_stopped(
    store: Store, folder: Path, clock: Clock, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write to the disk and each confirmation may be the last one, done but unknown to be done."""
    left = at
    confirm, append = store.log.confirm, module._append

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died

    async def dies_after_confirming(position: LogPosition) -> None:
        await confirm(position)
        count()

    def dies_after_appending(path: Path, length: int, content: bytes) -> None:
        append(path, length, content)
        count()

    monkeypatch.setattr(store.log, "confirm", dies_after_confirming)
    monkeypatch.setattr(module, "_append", dies_after_appending)
    await happen(store, *range(6))
    with pytest.raises(Died):
        await a_log(store, folder, clock, most_bytes=500).catch_up()
    monkeypatch.undo()
    await happen(store, 6)
    await a_log(store, folder, clock, most_bytes=500).catch_up()
    assert ids(folder) == [f"t{number}" for number in range(7)]


async def test_a_disk_that_is_full_for_a_while_loses_and_doubles_nothing(
    store: Store, log: ConversationLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GATHER_S", 0.0)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(module, "_LONGEST_PAUSE_S", 0.002)
    append, failures = module._append, iter(range(3))

    def fails(path: Path, length: int, content: bytes) -> None:
        if next(failures, None) is not None:
            append(path, length, content[:5])
            raise OSError(28, "No space left on device")
        append(path, length, content)

    monkeypatch.setattr(module, "_append", fails)
    log.start()
    await happen(store, 1, 2)
    log.wake()
    position = None
    while position is None or position.event < 2:
        position = await store.log.position()
    await log.stop()
    assert ids(folder) == ["t1", "t2"]


async def test_nothing_is_written_before_it_is_known_whether_to(store: Store, folder: Path, clock: Clock) -> None:
    log = ConversationLog(store.log, folder, wall_clock=clock)
    await happen(store, 1)
    await log.catch_up()
    assert names(folder) == []
    await log.apply({"core.memory.conversation_log": True})
    await log.catch_up()
    assert ids(folder) == ["t1"]


async def test_what_happens_while_it_is_off_is_never_written(store: Store, folder: Path, clock: Clock) -> None:
    log = a_log(store, folder, clock)
    await happen(store, 1)
    await log.catch_up()
    await log.apply({"core.memory.conversation_log": False})
    await log.catch_up()
    await happen(store, 2)
    await log.catch_up()
    # Killed while it was off; switched on before the next start.
    again = a_log(store, folder, clock)
    await again.catch_up()
    await happen(store, 3)
    await again.catch_up()
    assert ids(folder) == ["t1", "t3"]


async def test_a_file_that_somebody_removed_is_not_waited_for(
    store: Store, log: ConversationLog, folder: Path, clock: Clock
) -> None:
    await happen(store, 1)
    await log.catch_up()
    files(folder)[0].unlink()
    await happen(store, 2)
    await a_log(store, folder, clock).catch_up()
    assert ids(folder) == ["t2"]


# -- forgetting -------------------------------------------------------------------------------------------------------


async def forgotten(ids: Collection[str]) -> frozenset[str]:
    return frozenset(ids) & {"t0", "t2", "t3"}


async def test_forgotten_lines_go_from_every_file_and_it_goes_on(store: Store, folder: Path, clock: Clock) -> None:
    log = a_log(store, folder, clock, most_bytes=500)
    await happen(store, *range(5))
    await log.catch_up()
    with files(folder)[0].open("ab") as file:
        file.write(b"somebody's remark\n")
    assert await log.forget(forgotten) == 3
    assert await log.forget(forgotten) == 0
    await happen(store, 5)
    await log.catch_up()
    text = "".join(path.read_text() for path in files(folder))
    assert "text 2" not in text and "somebody's remark" in text
    assert [json.loads(line)["id"] for line in text.splitlines() if line.startswith("{")] == ["t1", "t4", "t5"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(folder))


async def test_it_goes_on_if_it_was_stopped_between_forgetting_and_confirming(
    store: Store, log: ConversationLog, folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await happen(store, *range(5))
    await log.catch_up()

    async def fails(position: LogPosition) -> None:
        raise Unavailable("stopped")

    monkeypatch.setattr(store.log, "confirm", fails)
    with pytest.raises(Unavailable):
        await log.forget(forgotten)
    monkeypatch.undo()
    (folder / ".2023-05-02.jsonl.partial").write_text("left by a crash")
    again = a_log(store, folder, clock)
    await happen(store, 5)
    await again.catch_up()
    assert ids(folder) == ["t1", "t4", "t5"]
    assert names(folder) == [path.name for path in files(folder)]
    assert os.stat(files(folder)[0]).st_size == (await store.log.position()).bytes  # type: ignore[union-attr]


async def test_an_event_that_was_forgotten_before_it_was_written_is_never_written(
    store: Store, log: ConversationLog, folder: Path
) -> None:
    await happen(store, 1, 2)
    await store.forgetting.delete(Selection(ids=("t1",)))
    await log.catch_up()
    assert ids(folder) == ["t2"]
