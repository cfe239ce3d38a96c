"""``kill -9`` of the real memory service in the middle of ``homeagent memory import``: every line is there once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from tests.chaos.memory import inspection
from tests.home import Home, wait_until

pytestmark = pytest.mark.chaos

LINES = 2_500


def a_line(number: int) -> dict[str, object]:
    # All at the same moment: then only the order of the file says what came first.
    return {
        "id": f"line-{number}",
        "time": "2025-03-04T05:06:07Z",
        "speaker": "Ann",
        "peer": "ann",
        "text": f"what was said in line {number}, 关于打印机",
        "reply": "an answer",
    }


def stored(path: Path) -> int:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM event").get)
    finally:
        connection.close()


def kill_after(home: Home, path: Path, events: int) -> int:
    """Kill the memory as soon as so many events are stored; returns how many were."""
    pid = home.pid("memory_service")
    deadline = time.monotonic() + 60
    while (count := stored(path)) < events:
        assert time.monotonic() < deadline, f"{count} events are stored"
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    # Before the new one is there: it takes the rest of the import at once.
    left = stored(path)
    wait_until(lambda: home.ps()["memory_service"]["pid"] not in (None, 0, pid), 30, "a new memory")
    return left


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_an_import_goes_on_where_the_memory_died(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(f"{json.dumps(a_line(number))}\n" for number in range(LINES)))
    path = home.data_dir / "memory" / "memory.db"
    moment = random.randint(200, LINES // 2)
    with home:
        importing = subprocess.Popen(
            [sys.executable, "-m", "homeagent", "memory", "import", str(file), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=home.environment | {"HOMEAGENT_DATA_DIR": str(home.data_dir)},
        )
        left = kill_after(home, path, moment)
        told, complaints = importing.communicate(timeout=90)
        assert importing.returncode == 0, complaints.decode()
        assert json.loads(told)["new"] + json.loads(told)["known"] == LINES
        assert left < LINES, "the import was over before the memory was killed"
        again = home.command("memory", "import", str(file), "--json")
        assert json.loads(again.stdout)["new"] == 0 and json.loads(again.stdout)["known"] == LINES
    found = inspection.inspect(path, path.with_name("media"))
    in_order = sorted(found.events, key=lambda id: found.events[id][-1])
    assert in_order == [f"line-{number}" for number in range(LINES)]
    # Its vectors are the encoder's, which this inspection knows nothing of.
    assert [problem for problem in found.problems if "the vector" not in problem] == []
