"""The allocator is told once to keep memory, unless somebody has decided otherwise."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from homeagent_sdk.bus import allocator


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda option, value: calls.append((option, value)))
    )
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_freed_memory_is_kept_up_to_a_bound(told: list[tuple[int, int]]) -> None:
    allocator.keep_freed_memory()
    assert told == [(-3, allocator.LARGEST_KEPT_BYTES), (-1, allocator.KEPT_BYTES)]
    assert allocator.KEPT_BYTES <= 8 * 1024 * 1024, "each process may keep this much"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_what_the_environment_says_goes_first(
    told: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "131072")
    allocator.keep_freed_memory()
    assert told == []


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    allocator.keep_freed_memory()
