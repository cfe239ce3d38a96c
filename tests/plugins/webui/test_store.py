from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from homeagent_sdk.errors import Unavailable
from plugins.webui import store as store_module
from plugins.webui.history_index import Point
from plugins.webui.store import IDEMPOTENCY_S, Store


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def point(number: int, *, is_head: bool = True) -> Point:
    return Point(number.to_bytes(16, "big"), f"c{number}", is_head)


def store_in(folder: Path, clock: Clock | None = None) -> Store:
    return Store(folder / "webui.db", structlog.get_logger(), clock or Clock())


async def test_points_are_there_after_a_restart_with_one_head_for_a_conversation(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert await store.open() == []
    store.keep([Point(b"a" * 16, "c", True)])
    store.keep([Point(b"b" * 16, "c", False), Point(b"d" * 16, "c", True)])
    await store.close()
    again = store_in(tmp_path)
    heads = {found.digest[:1]: found.is_head for found in await again.open()}
    assert heads == {b"a": False, b"b": False, b"d": True}
    await again.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await store.open()
    await store.close()
    assert (tmp_path / "webui.db").stat().st_mode & 0o777 == 0o600


async def test_the_tables_end_and_forget_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "POINTS", 5)
    monkeypatch.setattr(store_module, "IDEMPOTENCY_KEYS", 5)
    clock = Clock()
    store = store_in(tmp_path, clock)
    await store.open()
    for number in range(8):
        clock.now += 1
        store.keep([point(number)])
        assert await store.claim_key(bytes([number]), b"body")
    await store.close()
    again = store_in(tmp_path, clock)
    assert [found.conversation for found in await again.open()] == [f"c{number}" for number in range(3, 8)]
    assert await again.claim_key(bytes([0]), b"another body")
    assert not await again.claim_key(bytes([7]), b"another body")
    await again.close()


async def test_a_key_is_forgotten_after_a_day(tmp_path: Path) -> None:
    clock = Clock()
    store = store_in(tmp_path, clock)
    await store.open()
    assert await store.claim_key(b"k", b"one")
    assert not await store.claim_key(b"k", b"two")
    clock.now += IDEMPOTENCY_S + 1
    assert await store.claim_key(b"k", b"two")
    await store.close()


async def test_what_cannot_be_written_is_counted_and_nobody_waits_for_it(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    await store.open()
    await store._run(store._close)
    store.keep([point(1), point(2)])
    with pytest.raises(Unavailable):
        await store.claim_key(b"k", b"one")
    await store.close()
    assert store.dropped == 2


async def test_writes_that_wait_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_WAITING_WRITES", 3)
    store = store_in(tmp_path)
    await store.open()
    for number in range(5):
        store.keep([point(number)])
    assert store.dropped == 2
    await store.close()
