"""The kernel as a process: what it does when it cannot start, and what it waits for when it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from homeagent_sdk.paths import DataDir
from homeagent_sdk.testing import LocalBus
from kernel.methods.plugins import PluginMethods
from kernel.service import Kernel


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


async def test_turns_that_are_taken_up_wait_for_the_tools_of_plugins_and_of_the_memory(tmp_path: Path) -> None:
    async def plugins(body: Any, call: Any) -> Any:
        return {"plugins": [{"name": "timer", "state": "starting"}, {"name": "echo", "state": "disabled"}]}

    bus, kernel = LocalBus(), Kernel(DataDir(tmp_path), {})
    kernel._bus = bus.peer("kernel", "kernel")  # type: ignore[assignment]
    bus.peer("host").serve("host.plugins", plugins)
    kernel._plugins = PluginMethods(kernel._config, kernel._tools, kernel._stages, kernel._channels)
    kernel._plugins.serve(kernel._bus)
    for name, tier in (("memory", "service"), ("timer", "builtin")):
        assert not await kernel._are_registered()
        await bus.peer(name, tier).call("kernel.register", {"generation": 1, "tools": []})
    assert await kernel._are_registered()
