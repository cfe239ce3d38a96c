"""Backups of a HomeAgent that is talked to meanwhile, and what it knows when they are put back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from homeagent.backup.contents import DATABASES
from tests.fakes import replies
from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.replies import Recorded, Reply
from tests.home import Home, wait_until

FACT = "My cat is called Schrödinger and the vet is 张伟诊所 on Kastanienallee 7"
LATER = "The new boat is called Amphitrite"
OWNERS = ("kernel", "memory", "provider")


def rows(database: Path, question: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.execute(question))


def turns(data: Path) -> dict[str, tuple[str | None, int]]:
    """Return all turns that belong in the memory: outcome, and whether the journal calls them remembered."""
    found = rows(data / "kernel/journal.db", "SELECT turn_id, outcome, remembered FROM turns WHERE no_memory = 0")
    return {turn_id: (outcome, remembered) for turn_id, outcome, remembered in found}


def events(data: Path) -> list[str]:
    return [id for (id,) in rows(data / "memory/memory.db", "SELECT id FROM event")]


def copies_left(home: Home) -> list[Path]:
    return [path for owner in OWNERS for path in (home.data_dir / owner).glob("backup/*")]


@contextmanager
def lanes(home: Home, count: int) -> Iterator[None]:
    """Talk in so many lanes at once, without a pause."""
    stopping = threading.Event()

    def talk(lane: int) -> None:
        number = 0
        while not stopping.is_set():
            status, answer = home.say(f"small talk {number} in lane {lane}", f"lane-{lane}")
            assert status == 200, answer
            number += 1

    with ThreadPoolExecutor(count) as pool:
        talking = [pool.submit(talk, lane) for lane in range(count)]
        try:
            yield
        finally:
            stopping.set()
        for each in talking:
            each.result(40)


def make_large(home: Home, megabytes: int) -> None:
    """Give the memory so much to copy that there is time to do something meanwhile."""
    with closing(sqlite3.connect(home.data_dir / "memory/memory.db")) as connection:
        connection.execute("CREATE TABLE filler (content BLOB)")
        with connection:
            connection.executemany("INSERT INTO filler VALUES (randomblob(1000000))", [()] * megabytes)


def test_what_is_put_back_is_one_moment_and_unfinished_turns_go_on(
    home: Home, far_end: FakeOpenAI, tmp_path: Path
) -> None:
    asked = threading.Event()

    def script(request: Recorded) -> Reply:
        if "the slow one" in request.last_user:
            asked.set()
            return replies.slow(8.0, "at last")
        return replies.default_reply(request)

    far_end.script = script
    backup = tmp_path / "nas" / "b1"
    with home:
        assert home.say(FACT, "kitchen")[0] == 200
        with lanes(home, 3), ThreadPoolExecutor(1) as pool:
            slow = pool.submit(home.say, "the slow one", "slow lane")
            assert asked.wait(10)
            made = home.command("backup", str(backup), "--json", timeout_s=60)
            assert made.returncode == 0, made.stderr
            assert slow.result(40) == (200, "at last")
        assert home.say(LATER, "kitchen")[0] == 200
    assert json.loads(made.stdout)["paused_ms"] < 2000
    assert not copies_left(home)
    home.process = None

    kept, remembered = turns(backup), set(events(backup))
    assert {id for id, (_, told) in kept.items() if told} <= remembered
    unfinished = {id for id, (outcome, _) in kept.items() if outcome is None}
    assert len(unfinished) >= 1
    assert not unfinished & remembered, "the memory knows the answer of a turn that will be answered again"

    restored = home.command("restore", str(backup), "--yes", "--json")
    assert restored.returncode == 0, restored.stderr
    replaced = Path(json.loads(restored.stdout)["replaced"])
    assert set(turns(replaced)) > set(kept)
    with home:
        wait_until(lambda: all(outcome for outcome, _ in turns(home.data_dir).values()), 40, "an outcome of all turns")
        assert "Schrödinger" in home.say("recall: what is my cat called?", "elsewhere")[1]
        told = home.say("recall: what is the boat called?", "elsewhere 2")[1].split("recall: what")[0]
        assert "Amphitrite" not in told
        wait_until(lambda: all(told for _, told in turns(home.data_dir).values()), 20, "the memory of all turns")
    ledger = turns(home.data_dir)
    assert unfinished <= {id for id, (outcome, _) in ledger.items() if outcome == "answer"}
    known = events(home.data_dir)
    assert sorted(known) == sorted(ledger), "a turn is missing in the memory, or is there twice"


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["memory_service", "kernel", "the command"])
def test_a_kill_while_it_is_made_leaves_nothing_and_the_next_one_works(home: Home, tmp_path: Path, victim: str) -> None:
    with home:
        assert home.say(FACT)[0] == 200
    make_large(home, 80)
    home.process = None
    target = tmp_path / "nas" / "b1"
    with home:
        pids = {name: row["pid"] for name, row in home.ps().items()}
        command = subprocess.Popen(
            [sys.executable, "-m", "homeagent", "backup", str(target)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=home.environment | {"HOMEAGENT_DATA_DIR": str(home.data_dir)},
        )
        partly = home.data_dir / "memory" / "backup"
        wait_until(lambda: any(path.stat().st_size for path in partly.glob("*/memory.db")), 20, "a part of the copy")
        os.kill(pids.get(victim, command.pid), signal.SIGKILL)
        _, stderr = command.communicate(timeout=40)
        assert command.returncode not in (0, 2), "it was over before the kill"
        if victim == "memory_service":
            assert "the memory service could not do its part" in stderr
        assert not target.exists()
        home.wait_ready()
        wait_until(lambda: not copies_left(home), 20, "the removal of the copies")
        made = home.command("backup", str(target), timeout_s=60)
        assert made.returncode == 0, made.stderr
        assert [path.name for path in target.parent.iterdir()] == ["b1"]
        assert home.say("recall: what is my cat called?")[0] == 200


@pytest.mark.parametrize(("process", "service"), [("memory_service", "memory"), ("provider_service", "provider")])
def test_a_service_that_does_not_answer_is_named_and_turns_go_on(
    home: Home, tmp_path: Path, process: str, service: str
) -> None:
    with home:
        pid = home.pid(process)
        os.kill(pid, signal.SIGSTOP)
        try:
            made = home.command("backup", str(tmp_path / "b1"), timeout_s=40)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert made.returncode == 1
        assert f"the {service} service could not do its part" in made.stderr
        assert not (tmp_path / "b1").exists() and not copies_left(home)
        home.wait_ready()
        assert home.say("hello")[0] == 200


def test_while_it_runs_nothing_is_put_back(home: Home, tmp_path: Path) -> None:
    with home:
        assert home.command("backup", str(tmp_path / "b1")).returncode == 0
        refused = home.command("restore", str(tmp_path / "b1"), "--yes")
        assert refused.returncode == 3 and "homeagent down" in refused.stderr
    # What a stopped system has is what it had when the backup was made of it as it ran: nothing happened since.
    again = home.command("backup", str(tmp_path / "b2"))
    assert again.returncode == 0, again.stderr
    for name in DATABASES:
        assert (tmp_path / "b2" / name).stat().st_size == (tmp_path / "b1" / name).stat().st_size, name
    shutil.rmtree(tmp_path / "b1")
