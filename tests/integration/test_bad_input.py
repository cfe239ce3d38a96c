"""Bad input and bad surroundings: a clear error with what to do, and nothing lost or half-started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.home import Home, wait_until


def up(home: Home, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `homeagent up` where it must refuse."""
    return subprocess.run(
        [sys.executable, "-m", "homeagent", "up", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=home.environment | environment,
    )


def test_requests_that_are_wrong_are_told_what_is_wrong(home: Home) -> None:
    with home:
        status, body = home.post("/v1/chat/completions", b"{not json")
        assert status == 400 and "JSON" in body["error"]["message"]
        status, body = home.post("/v1/chat/completions", {"model": "homeagent", "messages": "hi"})
        assert status == 400 and body["error"]["param"] == "messages"
        status, body = home.post("/v1/chat/completions", {"model": "homeagent", "messages": []})
        assert status == 400
        status, body = home.post("/v1/chat/completions", {}, key="wrong")
        assert status == 401 and body["error"]["code"] == "invalid_api_key"
        huge = {"model": "homeagent", "messages": [{"role": "user", "content": "x" * (11 * 1024 * 1024)}]}
        status, body = home.post("/v1/chat/completions", huge)
        assert status == 413 and "10" in body["error"]["message"]
        assert home.get("/v1/nothing", key=home.environment["HOMEAGENT_API_KEY"])[0] == 404
        assert home.say("still there?")[0] == 200


def test_unknown_settings_and_values_are_refused_with_the_nearest_name(home: Home) -> None:
    with home:
        done = home.command("config", "set", "core.agent.max_tool_turn", "5")
        assert done.returncode != 0 and "core.agent.max_tool_turns" in done.stderr
        done = home.command("config", "set", "core.agent.max_tool_turns", "many")
        assert done.returncode != 0 and "max_tool_turns" in done.stderr
        assert home.command("config", "set", "core.agent.max_tool_turns", "7").returncode == 0
        assert '"value": 7' in home.command("config", "get", "core.agent.max_tool_turns", "--json").stdout


def test_a_port_in_use_is_refused_before_anything_starts(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = up(home, "--data-dir", str(home.data_dir), "--port", str(port))
    assert done.returncode == 3, done.stderr
    assert str(port) in done.stderr and "--port" in done.stderr
    assert done.stdout == ""
    assert not list((home.data_dir / "log").glob("*.log")), "something was started"


def test_a_data_directory_that_is_a_file_or_forbidden_is_refused(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = up(home, "--data-dir", str(tmp_path / "file"), "--port", str(home.port))
    assert done.returncode == 3 and str(tmp_path / "file") in done.stderr


def test_a_second_launcher_in_the_same_directory_is_refused_and_the_first_goes_on(home: Home) -> None:
    with home:
        done = up(home, "--data-dir", str(home.data_dir), "--port", str(home.port + 1))
        assert done.returncode == 3, done.stderr
        assert home.say("untouched?")[0] == 200


def test_commands_without_a_running_home_say_so(home: Home) -> None:
    done = home.command("status")
    assert done.returncode == 4 and "homeagent up" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_refuses_inputs_and_loses_nothing(home: Home, tmp_path: Path) -> None:
    disk = tmp_path / "home"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    try:
        with home:
            for number in range(5):
                assert home.say(f"before {number}", delivery=f"b{number}")[0] == 200
            ballast = disk / "ballast"
            with ballast.open("wb") as file:
                try:
                    while True:
                        file.write(b"x" * 65536)
                        file.flush()
                except OSError:
                    pass
            filler = "y" * 300_000

            def refused() -> bool:
                status, text = home.say(filler, "full")
                return status == 503 and "journal" in text

            wait_until(refused, 30, "a refusal that names the journal")
            ballast.unlink()
            wait_until(
                lambda: home.say("space again", "full", delivery="again")[0] == 200, 40, "an answer after the clean-up"
            )
            assert "before 3" in home.say("before 3", delivery="b3")[1]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
