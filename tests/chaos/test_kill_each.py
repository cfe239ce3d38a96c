"""``kill -9`` of each process while people talk: the rest lives, it comes back, nothing is lost or said twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import apsw
import pytest

from tests.fakes.openai_server import FakeOpenAI, slow
from tests.home import SERVICES, Home, still_alive, wait_until

pytestmark = pytest.mark.chaos
VICTIMS = (*SERVICES, "echo", "webui")


class Talker(threading.Thread):
    """Sends one message after another, each with its own key, and repeats one until it has an answer."""

    def __init__(self, home: Home, name: str) -> None:
        super().__init__(name=name)
        self.home = home
        self.answers: dict[str, str] = {}
        self.is_told_to_stop = threading.Event()
        self.problems: list[str] = []

    def run(self) -> None:
        number = 0
        while not self.is_told_to_stop.is_set():
            number += 1
            self.say(f"message {number} of {self.name}")

    def say(self, text: str) -> None:
        """Say it until it is answered; the key makes repeating safe."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status, answer = self.home.say(text, self.name, delivery=text)
            if status == 200:
                self.answers[text] = answer
                return
            if status:
                self.problems.append(f"{status} {answer[:200]}")
            time.sleep(0.1)
        raise AssertionError(f"{text!r} was never answered: {self.problems[-3:]}")


def history(home: Home, conversation: str) -> list[str]:
    """Return the inputs that the journal holds for a conversation, by way of the database."""
    path = home.data_dir / "kernel" / "journal.db"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        rows = connection.execute("SELECT text, outcome FROM turns WHERE text LIKE ?", (f"%{conversation}",))
        return [f"{text} {outcome}" for text, outcome in rows]
    finally:
        connection.close()


def remembered(home: Home) -> Counter[str]:
    """Return how often the memory holds each input."""
    path = home.data_dir / "memory" / "memory.db"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return Counter(text for (text,) in connection.execute("SELECT input FROM event"))
    finally:
        connection.close()


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_comes_back_and_nothing_is_lost(home: Home, victim: str) -> None:
    with home:
        others = {name: row["pid"] for name, row in home.ps().items() if name in SERVICES and name != victim}
        talkers = [Talker(home, f"talker-{number}") for number in range(3)]
        for talker in talkers:
            talker.start()
        time.sleep(0.5)
        killed = home.kill(victim)
        wait_until(lambda: home.ps().get(victim, {}).get("pid") not in (None, 0, killed), 30, f"a new {victim}")
        wait_until(lambda: home.ps()[victim]["state"] == "running", 30, f"{victim} running")
        time.sleep(0.5)
        for talker in talkers:
            talker.is_told_to_stop.set()
        for talker in talkers:
            talker.join(90)
            assert not talker.is_alive()
        after = {name: row["pid"] for name, row in home.ps().items() if name in others}
        assert after == others, "another service was restarted too"
        assert home.ps()[victim]["restarts"] >= 1
        final = Talker(home, "final")
        final.say("after the kill")
        for talker in talkers:
            assert talker.answers
            assert all(text in answer for text, answer in talker.answers.items())
            turns = history(home, talker.name)
            assert len(turns) == len(set(turns)) == len(talker.answers), "an input was lost or doubled"
            assert all(turn.endswith(" answer") for turn in turns), [t for t in turns if not t.endswith(" answer")]
        said = [text for talker in talkers for text in talker.answers]
        wait_until(lambda: all(remembered(home)[text] == 1 for text in said), 20, "every input in memory, once")


def test_a_killed_launcher_leaves_no_orphan(home: Home) -> None:
    with home:
        assert home.process is not None
        before = home.processes()
        assert len(before) >= 10
        os.kill(home.process.pid, signal.SIGKILL)
        time.sleep(1.0)
        left = still_alive(before)
        assert left == {}, json.dumps(left, indent=1)


def test_a_stopped_home_leaves_nothing(home: Home) -> None:
    shm = Path("/dev/shm")
    before = set(shm.iterdir())
    with home:
        processes = home.processes()
        began = time.monotonic()
        assert home.stop() == 0
        assert time.monotonic() - began < 10
        assert still_alive(processes) == {}
        assert set(shm.iterdir()) <= before
        assert not list((home.data_dir / "run").glob("*.sock"))


def test_an_input_accepted_before_everything_dies_is_answered_after_the_next_start(
    home: Home, far_end: FakeOpenAI
) -> None:
    with home:
        assert home.process is not None
        far_end.push(slow(30, "the late answer"))
        text = "will you be answered"
        asking = threading.Thread(target=home.say, args=(text, "witness"), kwargs={"delivery": text})
        asking.start()
        wait_until(lambda: far_end.requests, 10, "the request upstream")
        os.kill(home.process.pid, signal.SIGKILL)
        asking.join()
        home.process.wait()
    far_end.queue.clear()
    home.process = None
    with home:
        witness = Talker(home, "witness")
        witness.say(text)
        assert text in witness.answers[text]
        assert history(home, "answered") == ["will you be answered answer"]
