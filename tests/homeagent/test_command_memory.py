"""homeagent memory: search, show, stats, verify, forget."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from homeagent.commands.memory import forgetting
from homeagent.commands.memory._moments import seconds_of
from homeagent_sdk.errors import NotFound, Unavailable
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import Command, FakeSystem


def a_file(folder: Path, *lines: Any) -> str:
    """Write questions, one a line."""
    path = folder / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [["stats"], ["verify"], ["show", "e1"], ["search", "q"], ["forget", "e1"], ["import", "-"]],
    ids=" ".join,
)
def test_when_nothing_runs_the_exit_code_is_4(homeagent: Command, arguments: list[str]) -> None:
    ended = homeagent("memory", *arguments)
    assert ended.exit_code == 4 and ended.stdout == "" and "`homeagent up`" in ended.stderr


# -- search -----------------------------------------------------------------------------------------------------------

HIT = {
    "id": "e1",
    "kind": "event",
    "tier": "context",
    "time": 1796113800.0,
    "speaker": "Ann",
    "channel": "import",
    "text": "cake",
    "reply": "",
    "score": 0.9,
    "why": "cake",
}


def test_hits_are_listed_with_what_the_contract_says(homeagent: Command, system: FakeSystem) -> None:
    system.answer("memory.search", {"hits": [HIT], "no_record": False})
    ended = homeagent("memory", "search", "cake", "--limit", "3", "--peer", "ann", "--json")
    (hit,) = ended.json
    assert set(hit) == {"id", "text", "score", "tier", "time", "speaker", "why"}
    assert seconds_of(hit["time"]) == HIT["time"]
    assert system.called("memory.search") == [{"query": "cake", "principal": "ann", "limit": 3}]


@pytest.mark.parametrize("hits", [[], [HIT]])
def test_no_record_is_said_and_is_no_failure(homeagent: Command, system: FakeSystem, hits: list[Any]) -> None:
    system.answer("memory.search", {"hits": hits, "no_record": True})
    ended = homeagent("memory", "search", "cake")
    assert ended.exit_code == 0 and "no record" in ended.stderr
    assert ("cake" in ended.stdout) == bool(hits)
    ended = homeagent("memory", "search", "cake", "--json")
    assert ended.exit_code == 0 and len(ended.json) == len(hits)


def test_many_questions_are_answered_in_their_order(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    def answer(body: Any) -> Any:
        return {"hits": [{**HIT, "id": f"{body['query']}-{body['principal']}"}], "no_record": body["query"] == "q7"}

    system.answer("memory.search", answer)
    lines = [{"id": f"n{number}", "query": f"q{number}", "peer": "ann"} for number in range(50)]
    lines += [{"id": 51, "query": "q51"}]
    ended = homeagent("memory", "search", "--batch", a_file(tmp_path, *lines), "--limit", "2")
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["id"] for each in answers] == [*(f"n{number}" for number in range(50)), 51]
    assert [each["hits"][0]["id"] for each in answers[:2]] == ["q0-ann", "q1-ann"]
    assert answers[-1]["hits"][0]["id"] == "q51-None"
    assert [each["id"] for each in answers if each["abstained"]] == ["n7"]
    assert set(answers[0]) == {"id", "hits", "abstained"}
    assert {body["limit"] for body in system.called("memory.search")} == {2}


def test_a_bad_question_stops_the_whole_batch(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    ended = homeagent("memory", "search", "--batch", a_file(tmp_path, {"id": "n1", "query": "q"}, {"id": "n2"}))
    assert ended.exit_code == 1 and ended.stdout == "" and "line 2, query" in ended.stderr
    assert homeagent("memory", "search").exit_code == 2
    assert homeagent("memory", "search", "q", "--batch", "f").exit_code == 2


def test_an_error_in_the_middle_of_a_batch_ends_it(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    def answer(body: Any) -> Any:
        if body["query"] == "q3":
            raise Unavailable("gone")
        return {"hits": [], "no_record": True}

    system.answer("memory.search", answer)
    lines = [{"id": number, "query": f"q{number}"} for number in range(20)]
    ended = homeagent("memory", "search", "--batch", a_file(tmp_path, *lines))
    assert ended.exit_code == 1 and "gone" in ended.stderr
    assert [json.loads(line)["id"] for line in ended.stdout.splitlines()] == [0, 1, 2]


# -- show, stats, verify ----------------------------------------------------------------------------------------------


def test_one_item_is_shown(homeagent: Command, system: FakeSystem) -> None:
    item = {"kind": "event", "id": "e1", "time": 1796113800.0, "indexes": {"words": True, "vectors": []}}
    system.answer("memory.show", item)
    ended = homeagent("memory", "show", "e1")
    assert "indexes.words" in ended.stdout and "2026-1" in ended.stdout
    assert seconds_of(homeagent("memory", "show", "e1", "--json").json["time"]) == item["time"]
    system.answer("memory.show", NotFound("there is no event e2"))
    assert homeagent("memory", "show", "e2").exit_code == 1


def test_counts_are_shown(homeagent: Command, system: FakeSystem) -> None:
    system.answer("memory.stats", {"events": 7, "tiers": {"context": 7}, "bytes": 1024 * 1024, "oldest": None})
    ended = homeagent("memory", "stats")
    assert "tiers.context" in ended.stdout and "1.0 MB" in ended.stdout
    assert homeagent("memory", "stats", "--json").json["events"] == 7


def test_verifying_fails_when_a_check_does(homeagent: Command, system: FakeSystem) -> None:
    good = {"name": "words", "ok": True, "count": 0, "examples": []}
    system.stream("memory.verify", [{"checked": 5, "of": 5}, {"ok": True, "checks": [good]}])
    assert homeagent("memory", "verify").exit_code == 0
    bad = {"name": "orphans", "ok": False, "count": 2, "examples": ["v1", "v2"]}
    system.stream("memory.verify", [{"ok": False, "checks": [good, bad]}])
    ended = homeagent("memory", "verify")
    assert ended.exit_code == 1 and "orphans" in ended.stdout and "v1, v2" in ended.stdout
    assert homeagent("memory", "verify", "--json").json["checks"][1] == bad
    system.stream("memory.verify", [{"checked": 5, "of": 5}])
    assert homeagent("memory", "verify").exit_code == 1


def test_repairing_comes_before_verifying(homeagent: Command, system: FakeSystem) -> None:
    system.answer("memory.repair", {"repaired": {"words": 3}})
    ended = homeagent("memory", "verify", "--repair", "--json")
    assert ended.exit_code == 0 and ended.json["ok"] and "words, 3 rows" in ended.stderr
    assert [method for method, _ in system.calls] == ["memory.repair", "memory.verify"]


# -- forget -----------------------------------------------------------------------------------------------------------

JOURNAL = {"turns": 1, "unfinished": 0, "earlier": 0, "erased": True}
FOUND: dict[str, Any] = {
    "count": 7,
    "notes": 1,
    "relations": 0,
    "ids": ["e1"],
    "examples": [{"id": "e1", "time": 1796113800.0, "speaker": "Ann", "text": "cake\nfor tea"}],
    "receipts": {"journal": JOURNAL},
    "complete": True,
}
DONE: dict[str, Any] = {
    **FOUND,
    "receipts": {
        "journal": JOURNAL,
        "memory": {"events": 7, "words": 7},
        "conversation_log": {"lines": 7},
        "media": {"files": 2},
        "files": {"erased": True},
    },
}


def forgets(system: FakeSystem, found: dict[str, Any] = FOUND, done: dict[str, Any] = DONE) -> None:
    system.answer("memory.forget", lambda body: found if body["dry_run"] else done)


def test_it_shows_first_and_forgets_only_when_told(homeagent: Command, system: FakeSystem) -> None:
    forgets(system)
    ended = homeagent("memory", "forget", "e1", "--dry-run", "--json")
    assert ended.exit_code == 0 and ended.json == FOUND
    ended = homeagent("memory", "forget", "e1")
    assert ended.exit_code == 2 and "--yes" in ended.stderr
    assert "7 events, 1 notes" in ended.stderr and "Ann: cake for tea" in ended.stderr and "6 more" in ended.stderr
    assert all(body["dry_run"] for body in system.called("memory.forget"))


def test_every_store_gives_a_receipt_and_backups_are_named(
    homeagent: Command, system: FakeSystem, data: DataDir
) -> None:
    forgets(system)
    (data.memory / "memory.db.before-2.bak").touch()
    (data.root / "backups" / "20261201").mkdir(parents=True)
    ended = homeagent("memory", "forget", "e1", "e2", "--yes", "--json")
    assert ended.exit_code == 0
    assert ended.json["backups"] == [
        str(data.memory / "memory.db.before-2.bak"),
        str(data.root / "backups" / "20261201"),
    ]
    for words in ("1 turns", "events 7", "7 lines", "2 files", "written over", "20261201"):
        assert words in ended.stderr, words
    assert system.called("memory.forget")[-1] == {"ids": ["e1", "e2"], "dry_run": False}


def test_a_person_and_a_time_select_too(homeagent: Command, system: FakeSystem) -> None:
    forgets(system)
    homeagent("memory", "forget", "--peer", "ann", "--before", "2026-12-01T08:30:00Z", "--yes")
    (_, body) = system.called("memory.forget")
    assert body == {"principal": "ann", "before": 1796113800.0, "after": None, "dry_run": False}
    assert homeagent("memory", "forget", "--after", "someday").exit_code == 3
    assert homeagent("memory", "forget").exit_code == 2
    assert homeagent("memory", "forget", "e1", "--peer", "ann").exit_code == 2
    assert homeagent("memory", "forget", *(f"e{number}" for number in range(1_001))).exit_code == 2


@pytest.mark.parametrize(("typed", "is_done"), [("forget\n", True), ("yes\n", False), ("", False)])
def test_in_a_terminal_it_asks(
    homeagent: Command, system: FakeSystem, monkeypatch: pytest.MonkeyPatch, typed: str, is_done: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    forgets(system)
    monkeypatch.setattr(forgetting, "sys", type("Sys", (), {"stdin": Terminal(typed)}))
    ended = homeagent("memory", "forget", "e1")
    assert ended.exit_code == (0 if is_done else 2)
    assert len(system.called("memory.forget")) == (2 if is_done else 1)


def test_what_is_left_to_do_is_said(homeagent: Command, system: FakeSystem) -> None:
    receipts = {**DONE["receipts"], "files": {"erased": False}, "journal": {**JOURNAL, "unfinished": 1}}
    forgets(system, done={**DONE, "receipts": receipts, "complete": False})
    ended = homeagent("memory", "forget", "e1", "--yes")
    assert ended.exit_code == 1 and "not finished" in ended.stderr and "1 turns are not over" in ended.stderr


def test_nothing_to_forget_is_no_failure_but_an_unfinished_one_is_finished(
    homeagent: Command, system: FakeSystem
) -> None:
    nothing = {**FOUND, "count": 0, "notes": 0, "examples": [], "receipts": {"journal": {**JOURNAL, "turns": 0}}}
    forgets(system, found=nothing)
    ended = homeagent("memory", "forget", "e1", "--yes")
    assert ended.exit_code == 0 and "nothing to forget" in ended.stderr
    forgets(system, found={**nothing, "complete": False})
    assert homeagent("memory", "forget", "e1", "--yes").exit_code == 0
    assert system.called("memory.forget")[-1]["dry_run"] is False
