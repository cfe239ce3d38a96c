"""How often words occur, and when that is counted again."""

from __future__ import annotations

from pathlib import Path

import apsw

from homeagent_sdk.migrations import migrate
from memory_service.model import Term
from memory_service.store import frequencies as module
from memory_service.store.connection import open_for_writing
from memory_service.store.frequencies import Frequencies
from memory_service.store.rows import insert, prepared
from memory_service.store.schema import MIGRATIONS
from tests.memory_service.samples import an_event


def filled(path: Path, *texts: str) -> apsw.Connection:
    connection = open_for_writing(path)
    migrate(connection, MIGRATIONS)
    with connection:
        insert(connection, [prepared(an_event(f"e{number}", text)) for number, text in enumerate(texts)])
    return connection


def test_words_are_counted_by_event_and_phrases_by_their_rarest_part(tmp_path: Path) -> None:
    connection = filled(tmp_path / "a.db", "cat cat", "cat dog", "静安")
    terms = [
        Term("cat", ("cat",)),
        Term("none", ("none",)),
        Term("静安寺", ("静安", "安寺")),
        Term("both", ("cat", "dog")),
    ]
    assert Frequencies().of(connection, terms, 3) == (2, 0, 0, 1)
    assert Frequencies().of(connection, [], 3) == ()
    connection.close()


def test_common_words_are_counted_again_only_when_the_memory_has_grown(tmp_path: Path) -> None:
    connection = filled(tmp_path / "a.db", *["common"] * module._COMMON, "rare")
    frequencies = Frequencies()
    terms = [Term("common", ("common",)), Term("rare", ("rar",))]
    total = module._COMMON + 1
    assert frequencies.of(connection, terms, total) == (module._COMMON, 1)
    insert(connection, [prepared(an_event("more", "common rare"))])
    assert frequencies.of(connection, terms, total + 1) == (module._COMMON, 2)
    assert frequencies.of(connection, terms, total * 2) == (module._COMMON + 1, 2)
    connection.close()


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    connection = filled(tmp_path / "a.db", *["one two three"] * module._COMMON)
    frequencies = Frequencies()
    frequencies._remembered = {f"w{number}": (1, 1) for number in range(module._MAX_REMEMBERED)}
    frequencies.of(connection, [Term("one", ("one",))], module._COMMON)
    assert list(frequencies._remembered) == ["one"]
    connection.close()
