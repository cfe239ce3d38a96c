"""homeagent doctor: what the journal accepted is compared with what the memory has."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from homeagent import client
from homeagent.doctor import ledger
from homeagent_sdk.errors import TimedOut, Unavailable
from homeagent_sdk.migrations import Migration, migrate
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import Command, FakeSystem


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_PAUSE_S", 0.0)


class Books:
    """A journal and a memory: turns by id, each with whether the memory confirmed it."""

    def __init__(self, system: FakeSystem, told: dict[str, bool], missing: set[str], forgotten: set[str]) -> None:
        self.missing, self.forgotten = missing, forgotten
        self._told = list(told.items())
        system.answer("kernel.turn_ids", self._page)
        system.answer("memory.known", self._known)

    def _page(self, body: Any) -> Any:
        page = self._told[body["after"] : body["after"] + min(body["limit"], 2)]
        turns = [{"id": id, "time": 1.0, "told": told} for id, told in page]
        return {"turns": turns, "after": body["after"] + len(page) if page else None}

    def _known(self, body: Any) -> Any:
        return {
            "missing": [id for id in body["ids"] if id in self.missing],
            "forgotten": [id for id in body["ids"] if id in self.forgotten],
        }


def check_of(homeagent: Command, name: str) -> dict[str, str]:
    return next(check for check in homeagent("doctor", "--json").json if check["name"] == name)


def books(system: FakeSystem, count: int = 5, **more: Any) -> Books:
    told = dict.fromkeys((f"t{number}" for number in range(count)), True) | more.pop("told", {})
    return Books(system, told, more.pop("missing", set()), more.pop("forgotten", set()))


def test_all_turns_are_compared_page_by_page(homeagent: Command, system: FakeSystem) -> None:
    books(system)
    check = check_of(homeagent, "ledger")
    assert check["state"] == "ok" and "all 5 turns" in check["message"]
    assert [body["ids"] for body in system.called("memory.known")] == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_a_turn_that_the_memory_has_lost_is_a_failure(homeagent: Command, system: FakeSystem) -> None:
    books(system, missing={"t3"})
    check = check_of(homeagent, "ledger")
    assert check["state"] == "fail" and "1 of 5" in check["message"] and "t3" in check["message"] and check["todo"]


def test_a_turn_that_comes_a_moment_later_is_not_missed(homeagent: Command, system: FakeSystem) -> None:
    made = books(system, missing={"t3"})

    def arrives(body: Any) -> Any:
        answer = made._known(body)
        made.missing.clear()
        return answer

    system.answer("memory.known", arrives)
    assert check_of(homeagent, "ledger")["state"] == "ok"


def test_one_that_was_not_told_yet_waits(homeagent: Command, system: FakeSystem) -> None:
    books(system, told={"t9": False}, missing={"t9"})
    check = check_of(homeagent, "ledger")
    assert check["state"] == "warn" and "t9" in check["message"]


def test_one_that_only_the_memory_has_forgotten_is_told(homeagent: Command, system: FakeSystem) -> None:
    books(system, forgotten={"t2"})
    check = check_of(homeagent, "ledger")
    assert check["state"] == "warn" and "t2" in check["message"] and "memory forget" in check["todo"]


def test_a_long_comparison_ends_in_time(
    homeagent: Command, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    books(system)
    monkeypatch.setattr(ledger, "_COMPARE_S", -1.0)
    check = check_of(homeagent, "ledger")
    assert check["state"] == "warn" and "0 turns" in check["message"]


def test_a_memory_that_does_not_answer_is_a_failure(homeagent: Command, system: FakeSystem) -> None:
    books(system)
    system.answer("memory.known", Unavailable("memory is restarting", hint="wait"))
    check = check_of(homeagent, "ledger")
    assert (check["state"], check["message"], check["todo"]) == ("fail", "memory is restarting", "wait")


def test_what_verifying_finds_is_shown(homeagent: Command, system: FakeSystem) -> None:
    checks = [
        {"name": "words", "ok": True, "count": 0, "examples": []},
        {"name": "orphans", "ok": False, "count": 7, "examples": [f"v{number}" for number in range(7)]},
    ]
    system.stream("memory.verify", [{"checked": 1, "of": 2}, {"ok": False, "checks": checks}])
    check = check_of(homeagent, "memory orphans")
    assert check["state"] == "fail" and check["message"] == "7 wrong: v0, v1, v2, v3, v4, …"
    assert homeagent("doctor").exit_code == 1


def test_verifying_that_takes_too_long_is_a_warning(homeagent: Command, system: FakeSystem) -> None:
    system.stream("memory.verify", [{"checked": 1, "of": 2}, TimedOut("not done")])
    check = check_of(homeagent, "memory")
    assert check["state"] == "warn" and "memory verify" in check["todo"]


def test_without_a_running_system_it_says_how_to_run_it(
    homeagent: Command, monkeypatch: pytest.MonkeyPatch, data: DataDir
) -> None:
    monkeypatch.setattr(client, "is_running", lambda _: False)
    check = check_of(homeagent, "ledger")
    assert check["state"] == "warn" and "homeagent up" in check["todo"]


def test_every_database_says_its_schema(homeagent: Command, system: FakeSystem, data: DataDir) -> None:
    connection = apsw.Connection(str(data.kernel / "journal.db"))
    migrate(connection, [Migration(1, "turns", "CREATE TABLE t (x)")])
    connection.close()
    apsw.Connection(str(data.memory / "memory.db")).execute("CREATE TABLE x (y)")
    assert "version 1 (turns)" in check_of(homeagent, "schema kernel/journal.db")["message"]
    assert check_of(homeagent, "schema memory/memory.db")["state"] == "warn"
