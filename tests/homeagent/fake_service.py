"""Stands in for a service: does nothing, in one of several ways. Arguments: NAME HOW JOURNAL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from homeagent_sdk.process import die_with_parent
from homeagent_sdk.secrets import take_from_environment

NAME, HOW, JOURNAL = sys.argv[1:4]


def note(what: str) -> None:
    with open(JOURNAL, "a") as journal:
        journal.write(f"{what} {NAME} {os.getpid()} {time.monotonic():.3f}\n")


def stop(*_: object) -> None:
    note("stopped")
    sys.exit(0)


def main() -> None:
    die_with_parent()
    if HOW == "refuses":
        sys.stderr.write("no such setting: core.nonsense (see `homeagent config list`)\n")
        sys.exit(3)
    if HOW == "fails-once" and not Path(f"{JOURNAL}.{NAME}").exists():
        Path(f"{JOURNAL}.{NAME}").touch()
        sys.stderr.write("Traceback ...\nOSError: the first start failed\n")
        sys.exit(1)
    if HOW == "fails-always":
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if HOW == "stubborn" else stop)
    if HOW == "leaves-child":
        # In a session of its own and without a parent that would take it along: nothing ties it to this process.
        orphan = "import os, time; os.setsid(); time.sleep(60)"
        note(f"orphan={subprocess.Popen([sys.executable, '-S', '-c', orphan]).pid}")
    if HOW == "secret":
        secrets = take_from_environment(["HOMEAGENT_API_KEY", "HOMEAGENT_LLM_API_KEY"])
        note(f"secrets={','.join(map('='.join, secrets.items()))}")
    note("started")
    while True:
        signal.pause()


main()
