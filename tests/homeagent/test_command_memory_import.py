"""homeagent memory import."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from homeagent.commands.memory import _lines, importing
from homeagent.commands.memory._moments import iso, seconds_of
from homeagent_sdk.errors import Denied, Overloaded, Unavailable
from tests.homeagent.conftest import Command, FakeSystem

LINE = {"id": "e1", "time": "2026-12-01T08:30:00+00:00", "speaker": "Ann", "peer": "ann", "text": "cake"}


def a_line(id: str, **more: Any) -> dict[str, Any]:
    return {**LINE, "id": id, **more}


def a_file(folder: Path, *lines: Any) -> str:
    """Write lines, those that are no text as JSON."""
    path = folder / "lines.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


class Memory:
    """A memory service that keeps ids; the test may have it fail."""

    def __init__(self, system: FakeSystem) -> None:
        self.ids: list[str] = []
        self.forgotten: set[str] = set()
        self.batches: list[list[dict[str, Any]]] = []
        self.failures: list[Exception | None] = []
        system.answer("memory.import", self._import)
        system.answer("memory.known", self._known)

    def _import(self, body: Any) -> Any:
        self.batches.append(body["events"])
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        ids = [event["id"] for event in body["events"]]
        new = [id for id in dict.fromkeys(ids) if id not in self.ids and id not in self.forgotten]
        self.ids += new
        left_out = sum(id in self.forgotten for id in ids)
        return {"stored": len(new), "known": len(ids) - len(new) - left_out, "forgotten": left_out}

    def _known(self, body: Any) -> Any:
        missing = [id for id in body["ids"] if id not in self.ids]
        return {
            "missing": [id for id in missing if id not in self.forgotten],
            "forgotten": [id for id in missing if id in self.forgotten],
        }


@pytest.fixture
def memory(system: FakeSystem, monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(importing, "_FIRST_PAUSE_S", 0.001)
    return Memory(system)


# -- import -----------------------------------------------------------------------------------------------------------


def test_events_are_sent_as_they_are(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    file = a_file(tmp_path, LINE, a_line("e2", reply="yes", shared=True, more="ignored"), a_line("e3", reply=None))
    ended = homeagent("memory", "import", file, "--json")
    assert ended.exit_code == 0
    assert {name: ended.json[name] for name in ("lines", "new", "known", "bad")} == {
        "lines": 3,
        "new": 3,
        "known": 0,
        "bad": 0,
    }
    sent = memory.batches[0]
    assert sent[0] == {**LINE, "time": 1796113800.0, "reply": "", "shared": False}
    assert (sent[1]["reply"], sent[1]["shared"], sent[2]["reply"]) == ("yes", True, "")
    assert "3 lines: 3 new, 0 known" in ended.stderr


def test_importing_again_says_what_is_known_and_what_was_forgotten(
    homeagent: Command, memory: Memory, tmp_path: Path
) -> None:
    memory.ids, memory.forgotten = ["e1"], {"e2"}
    ended = homeagent("memory", "import", a_file(tmp_path, LINE, a_line("e2"), a_line("e3")))
    assert "3 lines: 1 new, 1 known" in ended.stderr and "1 were forgotten earlier" in ended.stderr


def test_a_dry_run_imports_nothing(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    memory.ids, memory.forgotten = ["e1"], {"e2"}
    ended = homeagent("memory", "import", a_file(tmp_path, LINE, a_line("e2"), a_line("e3")), "--dry-run", "--json")
    assert memory.batches == []
    assert (ended.json["new"], ended.json["known"], ended.json["forgotten"]) == (1, 1, 1)


BAD = [
    ("not json", ""),
    ("[1]", ""),
    ({**LINE, "id": None}, "id"),
    ({**LINE, "id": 5}, "id"),
    ({**LINE, "id": ""}, "id"),
    ({**LINE, "time": "yesterday"}, "time"),
    ({**LINE, "time": "1969-12-31T00:00:00+00:00"}, "time"),
    ({**LINE, "time": 1796113800}, "time"),
    ({key: value for key, value in LINE.items() if key != "speaker"}, "speaker"),
    ({**LINE, "peer": ""}, "peer"),
    ({**LINE, "text": None}, "text"),
    ({**LINE, "reply": 1}, "reply"),
    ({**LINE, "shared": "yes"}, "shared"),
    ({**LINE, "shared": 1}, "shared"),
    ('{"id": "e1", "time": "2026-12-01", "speaker": "A", "peer": "a", "text": "\\ud800"}', "text"),
]


@pytest.mark.parametrize(("line", "field"), BAD, ids=[f"{number} {field}" for number, (_, field) in enumerate(BAD)])
def test_a_bad_line_is_named_and_nothing_is_imported(
    homeagent: Command, memory: Memory, tmp_path: Path, line: Any, field: str
) -> None:
    ended = homeagent("memory", "import", a_file(tmp_path, LINE, "", line), "--json")
    assert ended.exit_code == 1 and memory.batches == []
    (error,) = ended.json["errors"]
    assert (error["line"], error["field"]) == (3, field) and error["message"]
    assert f"line 3{', ' + field if field else ''}: " in ended.stderr


def test_twenty_bad_lines_are_shown_and_the_rest_counted(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    ended = homeagent("memory", "import", a_file(tmp_path, *["nonsense"] * 25), "--json")
    assert len(ended.json["errors"]) == 20 and ended.json["bad"] == 25
    assert "line 20:" in ended.stderr and "line 21:" not in ended.stderr and "5 more" in ended.stderr


def test_the_good_lines_are_imported_if_asked_to(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    ended = homeagent("memory", "import", a_file(tmp_path, "nonsense", LINE, "{}"), "--skip-bad", "--json")
    assert ended.exit_code == 0 and memory.ids == ["e1"]
    assert (ended.json["new"], ended.json["bad"]) == (1, 2)


def test_batches_have_a_bounded_size_and_keep_the_order(
    homeagent: Command, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_BATCH_BYTES", 3_000)
    lines = [a_line(f"e{number}", text="x" * (5_000 if number == 7 else 10)) for number in range(1_200)]
    assert homeagent("memory", "import", a_file(tmp_path, *lines)).exit_code == 0
    assert memory.ids == [f"e{number}" for number in range(1_200)]
    assert all(len(batch) == 1 or sum(len(json.dumps(event)) for event in batch) < 4_500 for batch in memory.batches)
    monkeypatch.setattr(importing, "_BATCH_BYTES", 10**9)
    memory.batches.clear()
    homeagent("memory", "import", a_file(tmp_path, *lines))
    assert [len(batch) for batch in memory.batches] == [500, 500, 200]


@pytest.mark.parametrize(
    "failures",
    [
        [Unavailable("restarting")],
        [None, Overloaded("busy"), Overloaded("busy")],
        [None, Unavailable("restarting"), None, Unavailable("restarting"), Unavailable("still")],
    ],
    ids=["the first", "the second twice", "several"],
)
def test_a_memory_service_that_restarts_is_waited_for(
    homeagent: Command,
    memory: Memory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: list[Exception | None],
) -> None:
    monkeypatch.setattr(importing, "_BATCH", 10)
    memory.failures = failures
    lines = [a_line(f"e{number}") for number in range(100)]
    ended = homeagent("memory", "import", a_file(tmp_path, *lines), "--json")
    assert ended.exit_code == 0 and sorted(memory.ids) == sorted(line["id"] for line in lines)
    assert ended.json["restarts"] >= 1 and ended.json["new"] == 100


def test_patience_has_an_end(
    homeagent: Command, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_PATIENCE_S", 0.01)
    memory.failures = [Unavailable("gone", hint="start it")] * 1_000
    ended = homeagent("memory", "import", a_file(tmp_path, LINE))
    assert ended.exit_code == 1 and "gone" in ended.stderr and "start it" in ended.stderr


def test_what_waiting_cannot_help_ends_the_import(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    memory.failures = [Denied("not the operator")]
    assert homeagent("memory", "import", a_file(tmp_path, LINE)).exit_code == 5
    assert len(memory.batches) == 1


def test_an_empty_file_and_one_that_is_not_there(homeagent: Command, memory: Memory, tmp_path: Path) -> None:
    assert homeagent("memory", "import", a_file(tmp_path)).exit_code == 0
    ended = homeagent("memory", "import", str(tmp_path / "nowhere"))
    assert ended.exit_code == 1 and "nowhere" in ended.stderr
    assert memory.batches == []


def test_standard_input_is_read_too(
    homeagent: Command, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.write(write, b"\xef\xbb\xbf" + json.dumps(LINE).encode() + b"\n\n" + json.dumps(a_line("e2")).encode())
    os.close(write)
    with open(read, "rb") as pipe:
        monkeypatch.setattr(_lines, "_standard_input", lambda: pipe)
        assert homeagent("memory", "import", "-").exit_code == 0
    assert memory.ids == ["e1", "e2"]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("2026-12-01T08:30:00Z", 1796113800.0),
        ("2026-12-01T08:30:00.25+08:00", 1796085000.25),
        ("2026-12-01", time.mktime((2026, 12, 1, 0, 0, 0, 0, 0, -1))),
        ("2026-12-01T08:30", time.mktime((2026, 12, 1, 8, 30, 0, 0, 0, -1))),
    ],
)
def test_times_are_read_with_and_without_a_zone(written: str, seconds: float) -> None:
    assert seconds_of(written) == seconds
    shown = iso(seconds)
    assert shown is not None and seconds_of(shown) == seconds
