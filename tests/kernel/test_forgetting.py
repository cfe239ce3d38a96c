"""Forgetting in the journal: the words go, also from the file; what shows that a turn was accepted stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from homeagent_sdk.migrations import migrate
from kernel.journal import Accepted, Forgotten, Journal, NewTurn, Selection
from kernel.journal.schema import MIGRATIONS

SECRET = "zebraquokka77"


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    times = iter(range(1_000, 2_000))
    journal = Journal(tmp_path / "journal.db", wall_clock=lambda: float(next(times)))
    await journal.open()
    yield journal
    await journal.close()


async def happen(journal: Journal, turn_id: str, text: str = SECRET, **more: Any) -> None:
    """Let a turn happen, saved once on its way."""
    lane = {"channel": "webui", "conversation": "c1", "principal": "owner", **more}
    frame = f"frame: {text}".encode()
    await journal.accept(NewTurn(turn_id, text=text, frame=frame, delivery_id=f"d-{turn_id}", **lane))
    await journal.save(turn_id, "llm", frame * 100)
    await journal.finish(turn_id, "answer", f"you said {text}", {"text": text}, frame=frame)


def files_with(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


async def test_the_words_are_gone_and_the_rest_stays(journal: Journal, tmp_path: Path) -> None:
    await happen(journal, "t1")
    await happen(journal, "t2", "the weather")
    assert files_with(tmp_path, SECRET)
    assert await journal.forget(Selection(ids=("t1", "unknown"))) == Forgotten(1, 0, 0)
    assert await journal.empty_log()
    assert files_with(tmp_path, SECRET) == []
    turn = await journal.get("t1")
    assert turn is not None
    assert (turn.text, turn.answer, turn.result, turn.frame) == ("", None, None, b"")
    assert (turn.outcome, turn.accepted_at, turn.finished_at) == ("answer", 1_000.0, 1_001.0)
    again = NewTurn("t9", "webui", "c1", "owner", SECRET, b"", delivery_id="d-t1")
    assert await journal.accept(again) == Accepted("t1", duplicate=True)
    assert await journal.forget(Selection(ids=("t1",))) == Forgotten(0, 0, 1)


async def test_it_is_neither_told_nor_shown_nor_missed(journal: Journal) -> None:
    await happen(journal, "t1")
    await happen(journal, "t2")
    await journal.mark_remembered(["t2"])
    assert [(turn.turn_id, turn.remembered) for turn in await journal.must_be_known(0, 10)] == [
        ("t1", False),
        ("t2", True),
    ]
    await journal.forget(Selection(ids=("t1",)))
    assert await journal.unremembered(10) == []
    assert [turn.turn_id for turn in await journal.history("webui", "c1", 10)] == ["t2"]
    assert [turn.turn_id for turn in await journal.must_be_known(0, 10)] == ["t2"]


async def test_a_turn_that_is_not_over_stays_and_is_counted(journal: Journal) -> None:
    await journal.accept(NewTurn("t1", "webui", "c1", "owner", SECRET, b"frame"))
    assert await journal.select(Selection(principal="owner")) == Forgotten(0, 1, 0)
    assert await journal.forget(Selection(principal="owner")) == Forgotten(0, 1, 0)
    assert [turn.text for turn in await journal.unfinished()] == [SECRET]


async def test_a_person_is_forgotten_within_a_time(journal: Journal) -> None:
    for number in range(4):
        await happen(journal, f"t{number}", principal=("ann", "bea")[number % 2])
    accepted = [(await journal.get(f"t{number}")).accepted_at for number in range(4)]  # type: ignore[union-attr]
    assert await journal.forget(Selection(principal="ann", before=accepted[2])) == Forgotten(1, 0, 0)
    assert await journal.forget(Selection(after=accepted[3])) == Forgotten(1, 0, 0)
    assert await journal.forget(Selection()) == Forgotten(0, 0, 0)
    texts = [(await journal.get(f"t{number}")).text for number in range(4)]  # type: ignore[union-attr]
    assert texts == ["", SECRET, SECRET, ""]


async def test_a_conversation_is_called_by_what_is_left_of_it(journal: Journal) -> None:
    await happen(journal, "t1")
    await happen(journal, "t2", "the weather\nof today")
    await happen(journal, "t3", conversation="c2")
    await journal.forget(Selection(ids=("t1", "t3")))
    (left,) = await journal.conversations("webui", "owner", 10)
    assert (left.conversation, left.title) == ("c1", "the weather of today")


@pytest.mark.parametrize(
    ("selection", "lanes"),
    [(Selection(ids=("t1",)), [("webui", "owner", "c1")]), (Selection(principal="owner"), [])],
    ids=["told which", "all of the person"],
)
async def test_a_title_goes_though_its_turn_was_pruned(journal: Journal, selection: Selection, lanes: Any) -> None:
    await happen(journal, "t1")
    await journal.mark_remembered(["t1"])
    assert await journal.prune(0.0, keep_per_lane=1) == 0
    await happen(journal, "t2", conversation="c1", principal="other")
    assert await journal.prune(0.0, keep_per_lane=1) == 1
    assert [each.title for each in await journal.conversations("webui", "owner", 10)] == [SECRET]
    await journal.forget(selection, lanes)
    assert await journal.conversations("webui", "owner", 10) == []


async def test_the_log_is_not_emptied_under_a_reader(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.database._LOG_PAUSE_S", 0.0)
    await happen(journal, "t1")
    other = apsw.Connection(str(tmp_path / "journal.db"))
    other.execute("BEGIN")
    list(other.execute("SELECT * FROM turns"))
    await journal.forget(Selection(ids=("t1",)))
    assert not await journal.empty_log()
    other.execute("COMMIT")
    other.close()
    assert await journal.empty_log() and files_with(tmp_path, SECRET) == []


async def test_what_an_earlier_program_left_in_the_file_is_gone_after_the_upgrade(tmp_path: Path) -> None:
    old = apsw.Connection(str(tmp_path / "journal.db"))
    old.execute("PRAGMA auto_vacuum = INCREMENTAL")
    migrate(old, MIGRATIONS[:1])
    old.execute(
        "INSERT INTO turns (turn_id, channel, conversation, principal, accepted_at, step, frame, schema_version, text,"
        " outcome) VALUES ('t1', 'webui', 'c1', 'owner', 1, 'done', ?, 1, '', 'answer')",
        (SECRET.encode() * 1_000,),
    )
    old.execute("UPDATE turns SET frame = x''")
    old.close()
    assert files_with(tmp_path, SECRET) == ["journal.db"]
    journal = Journal(tmp_path / "journal.db")
    await journal.open()
    try:
        assert await journal.empty_log()
        assert "journal.db" not in files_with(tmp_path, SECRET)
        assert (await journal.get("t1")) is not None
    finally:
        await journal.close()
