"""Leaves processes behind that do not want to go: in its group, in a session of their own, and daemons."""

import os
import signal
import subprocess
import sys
import time

from homeagent_sdk.plugin import Plugin

plugin = Plugin()

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def daemon(report: int) -> None:
    """Fork twice and take a session, as daemons do, without a new program."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pid = os.fork()
        if pid:
            os._exit(0)
        os.write(report, f"{os.getpid()}\n".encode())
        time.sleep(3600)
        os._exit(0)


@plugin.tool()
def fork() -> list[int]:
    """Start four processes, each harder to get rid of, and return their pids."""
    in_group = subprocess.Popen([sys.executable, "-c", STUBBORN])
    in_session = subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
    script = (
        f'import subprocess, sys; p = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=2); print(p.pid)'
    )
    orphan = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    read_end, write_end = os.pipe()
    daemon(write_end)
    forked = os.read(read_end, 32)
    return [in_group.pid, in_session.pid, int(orphan.stdout), int(forked)]


@plugin.tool()
async def crash() -> None:
    """End the process without a word to its children."""
    os._exit(1)
