"""The kernel as a process: what it does when it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def kernel(data_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a kernel that has to refuse to start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMEAGENT_")}
    return subprocess.run(
        [sys.executable, "-m", "kernel", "--data-dir", str(data_dir), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment,
    )


def test_an_unknown_override_is_named_and_ends_the_start_for_good(tmp_path: Path) -> None:
    done = kernel(tmp_path / "home", "--set", "core.agent.max_tool_turn=5")
    assert done.returncode == 3
    assert "core.agent.max_tool_turns" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_none_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "kernel"
    folder.mkdir(parents=True)
    (folder / "journal.db").write_bytes(b"this was a picture once" * 100)
    done = kernel(tmp_path / "home")
    assert done.returncode != 0
    assert "journal.db" in done.stderr
    assert (folder / "journal.db").read_bytes().startswith(b"this was a picture once")
