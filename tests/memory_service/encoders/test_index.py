"""Exact search over codes: the same as comparing the vectors themselves, and never beyond the audience."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from memory_service.encoders import index as module
from memory_service.encoders.abc import Vectors
from memory_service.encoders.codes import to_codes
from memory_service.encoders.index import VectorIndex

DIMENSIONS = 64


def some_vectors(count: int, seed: int = 7) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSIONS)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def filled(vectors: Vectors, audiences: list[int] | None = None) -> VectorIndex:
    index = VectorIndex(DIMENSIONS)
    for start in range(0, len(vectors), 700):
        part = vectors[start : start + 700]
        numbers = list(range(start + 1, start + 1 + len(part)))
        index.add(numbers, audiences[start : start + 700] if audiences else [0] * len(part), to_codes(part))
    return index


def test_it_finds_the_same_as_comparing_every_vector() -> None:
    vectors, questions = some_vectors(3_000), some_vectors(20, seed=8)
    index = filled(vectors)
    assert len(index) == 3_000
    for question in questions:
        exact = vectors @ question
        found = index.search(question, None, 10)
        assert [round(cosine, 2) for _, cosine in found] == pytest.approx(sorted(exact, reverse=True)[:10], abs=0.02)
        assert found[0][0] - 1 in np.argsort(-exact)[:2]


def test_nothing_outside_the_audiences_is_found() -> None:
    vectors = some_vectors(2_000)
    index = filled(vectors, [number % 10 for number in range(2_000)])
    for question in some_vectors(50, seed=9):
        found = index.search(question, (3, 5), 20)
        assert len(found) == 20
        assert {(item - 1) % 10 for item, _ in found} <= {3, 5}
    assert index.search(some_vectors(1)[0], (77,), 5) == []
    assert index.search(some_vectors(1)[0], (), 5) == []


@pytest.mark.parametrize("seen", [(0,), tuple(range(9)), tuple(range(10)), None])
def test_few_rows_or_most_rows_visible_the_nearest_are_the_same_as_by_comparing_each(
    seen: tuple[int, ...] | None,
) -> None:
    vectors, question = some_vectors(3_000), some_vectors(1, seed=9)[0]
    index = filled(vectors, [number % 10 for number in range(3_000)])
    exact = {n + 1: float(vectors[n] @ question) for n in range(3_000) if seen is None or n % 10 in seen}
    found = dict(index.search(question, seen, 20))
    assert found.keys() <= exact.keys()
    assert found == pytest.approx({item: exact[item] for item in found}, abs=0.02)
    assert min(found.values()) >= sorted(exact.values())[-20] - 0.02


def test_an_item_counts_once_by_its_nearest_row() -> None:
    vectors = some_vectors(3)
    index = VectorIndex(DIMENSIONS)
    index.add([1, 1, 2], [0, 0, 0], to_codes(vectors))
    found = index.search(vectors[1], None, 5)
    assert [item for item, _ in found] == [1, 2]
    assert found[0][1] == pytest.approx(1.0, abs=0.01)
    assert index.cosines(vectors[1], [1, 2, 99]).keys() == {1, 2}


def test_what_is_removed_is_neither_found_nor_kept() -> None:
    vectors = some_vectors(10)
    index = filled(vectors)
    index.remove([4, 99])
    assert 4 not in dict(index.search(vectors[3], None, 10))
    assert index.cosines(vectors[3], [4]) == {}
    assert 4 not in dict(index.search(vectors[3], (0,), 10))


def test_an_item_that_is_added_again_after_its_removal_is_what_it_is_now() -> None:
    vectors = some_vectors(2)
    index = VectorIndex(DIMENSIONS)
    index.add([7], [1], to_codes(vectors[:1]))
    index.remove([7])
    index.add([7], [2], to_codes(vectors[1:]))
    assert len(index) == 1
    assert index.search(vectors[0], (1,), 5) == []
    assert index.search(vectors[1], (2,), 5)[0] == (7, pytest.approx(1.0, abs=0.01))


def test_room_of_what_was_removed_is_used_again() -> None:
    index = VectorIndex(DIMENSIONS)
    vectors = some_vectors(1_000)
    for _ in range(20):
        index.add(list(range(1_000)), [0] * 1_000, to_codes(vectors))
        index.remove(range(1_000))
    assert len(index) == 0
    assert index.capacity <= 4_000
    index.add([5], [0], to_codes(vectors[5:6]))
    assert index.search(vectors[5], None, 3) == [(5, pytest.approx(1.0, abs=0.01))]


@pytest.mark.parametrize("seen", [None, (0,)])
def test_what_is_removed_during_a_search_is_not_found_without_a_name(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[int, ...] | None
) -> None:
    vectors = some_vectors(10)
    searched = filled(vectors)
    compare = module._cosines

    def removing(*arguments: Any) -> Vectors:
        searched.remove([3])
        return compare(*arguments)

    monkeypatch.setattr(module, "_cosines", removing)
    assert {item for item, _ in searched.search(vectors[2], seen, 10)} == {1, 2, 4, 5, 6, 7, 8, 9, 10}


def test_searches_beside_a_writer_see_whole_items_only() -> None:
    vectors = some_vectors(4_000)
    codes = to_codes(vectors)
    index, stop = VectorIndex(DIMENSIONS), threading.Event()
    wrong: list[tuple[int, float]] = []

    def search() -> None:
        while not stop.is_set():
            for item, cosine in index.search(vectors[0], None, 10):
                if item < 0 or cosine > 0.01 + float(vectors[item] @ vectors[0]):
                    wrong.append((item, cosine))

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(0, 4_000, 50):
        index.add(list(range(start, start + 50)), [0] * 50, codes[start : start + 50])
        index.remove(range(start, start + 20))
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_a_vector_without_direction_is_near_to_nothing() -> None:
    index = VectorIndex(DIMENSIONS)
    index.add([1], [0], to_codes(np.zeros((1, DIMENSIONS), np.float32)))
    assert index.search(some_vectors(1)[0], None, 1) == [(1, 0.0)]


def test_a_code_of_another_space_is_refused() -> None:
    with pytest.raises(ValueError, match="reshape"):
        VectorIndex(DIMENSIONS).add([1], [0], [b"\x01" * 32])
