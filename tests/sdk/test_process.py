from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from homeagent_sdk import process

PRELUDE = "import asyncio, os, sys\nfrom homeagent_sdk import process\nfrom homeagent_sdk.errors import *\n"


def start(program: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def wait_until(what: Callable[[], bool], limit_s: float = 10.0) -> bool:
    """Return whether something became true in time."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.01)
    return what()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


STOPS_CLEANLY = """
async def main(stopping):
    print("ready", flush=True)
    await stopping.wait()
    print("stopped", flush=True)
sys.exit(process.run(main))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process_in_order(number: signal.Signals) -> None:
    with start(STOPS_CLEANLY) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.communicate(timeout=10)[0] == "stopped\n"
        assert child.returncode == 0


HANGS = """
async def main(stopping):
    print("ready", flush=True)
    await asyncio.sleep(60)
sys.exit(process.run(main, stop_within_s=float(os.environ["WITHIN"])))
"""


def test_a_process_that_does_not_stop_is_cancelled() -> None:
    with start(HANGS, WITHIN="0.05") as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        child.terminate()
        assert child.wait(10) == 1


def test_a_second_signal_does_not_wait() -> None:
    with start(HANGS, WITHIN="50") as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        child.terminate()
        assert wait_until(lambda: not _pending(child.pid))
        child.terminate()
        assert child.wait(10) == 1


def _pending(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd")))


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ("return 7", 7, ""),
        ("return None", 0, ""),
        ("raise Invalid('no such directory', hint='make it')", 3, "no such directory (make it)\n"),
        ("raise NotFound('no such setting')", 3, "no such setting\n"),
        ("raise Unavailable('no kernel')", 1, "no kernel\n"),
    ],
)
def test_the_exit_code_says_how_it_ended(statement: str, code: int, message: str) -> None:
    with start(f"async def main(stopping):\n    {statement}\nsys.exit(process.run(main))") as child:
        assert child.communicate(timeout=10) == ("", message)
        assert child.returncode == code


PARENT_OF_ONE = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", '''
import os, time
from homeagent_sdk import process
process.die_with_parent()
print(os.getpid(), os.environ.get("HOMEAGENT_PARENT_PID"), flush=True)
time.sleep(60)
'''], env={**os.environ, "HOMEAGENT_PARENT_PID": str(os.getpid())})
child.wait()
"""


def test_a_child_dies_with_its_parent_even_by_sigkill() -> None:
    with start(PARENT_OF_ONE) as parent:
        assert parent.stdout is not None
        pid, variable = parent.stdout.readline().split()
        assert is_alive(int(pid))
        assert variable == "None", "the variable must not reach the children of the child"
        parent.kill()
        assert wait_until(lambda: not is_alive(int(pid)), 2.0)


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    with start("process.die_with_parent()\nprint('alive')", HOMEAGENT_PARENT_PID="1") as child:
        assert child.communicate(timeout=10)[0] == ""
        assert child.returncode == 1


def test_a_process_started_by_hand_depends_on_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOMEAGENT_PARENT_PID", raising=False)
    process.die_with_parent()


def test_the_oom_score_is_what_was_asked_for() -> None:
    with start("process.prefer_as_oom_victim(500)\nprint(open('/proc/self/oom_score_adj').read())") as child:
        assert child.communicate(timeout=10)[0].strip() == "500"


def test_threads_take_turns_more_often() -> None:
    with start("process.lower_switch_interval()\nprint(sys.getswitchinterval())") as child:
        assert float(child.communicate(timeout=10)[0]) < 0.001
