from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homeagent.commands.logs import Tail, readable
from homeagent_sdk.paths import DataDir
from tests.homeagent.conftest import Command


def line(moment: float, event: str, **fields: object) -> str:
    return json.dumps({"time": moment, "level": "info", "service": "kernel", "event": event, **fields}) + "\n"


@pytest.fixture(autouse=True)
def logs(data: DataDir) -> DataDir:
    (data.log / "kernel.log").write_text(line(1.0, "one") + line(3.0, "three", turns=4))
    (data.log / "webui.log").write_text(line(2.0, "two"))
    return data


def events(output: str) -> list[str]:
    return [json.loads(row)["event"] for row in output.splitlines()]


def test_all_logs_are_shown_in_the_order_of_time(homeagent: Command) -> None:
    assert events(homeagent("logs", "--json").stdout) == ["one", "two", "three"]


def test_one_log_can_be_chosen_and_cut(homeagent: Command) -> None:
    assert events(homeagent("logs", "kernel", "--json").stdout) == ["one", "three"]
    assert events(homeagent("logs", "-n", "2", "--json").stdout) == ["two", "three"]
    assert homeagent("logs", "-n", "0").stdout == ""


def test_a_name_without_log_lists_those_that_there_are(homeagent: Command) -> None:
    ended = homeagent("logs", "nothing")
    assert ended.exit_code == 1 and "kernel, webui" in ended.stderr


def test_people_get_readable_lines(homeagent: Command) -> None:
    shown = homeagent("logs", "kernel").stdout.splitlines()
    assert shown[1].endswith("info    kernel           three turns=4")


def test_a_traceback_keeps_its_lines_and_odd_lines_stay_as_they_are() -> None:
    assert readable(line(1.0, "bad", exception="Traceback\n  x").strip()).endswith("\nTraceback\n  x")
    for odd in ("no json", "[1]", '{"a": 1}'):
        assert readable(odd) == odd


def test_the_tail_of_a_long_log_is_found_without_reading_it_all(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(5000)))
    assert [row.split()[1] for row in Tail(file).last(3)] == ["4997", "4998", "4999"]
    assert len(Tail(file).last(10_000)) == 5000


def test_following_survives_a_turn_of_the_file_and_half_written_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text("one\ntwo\n")
    tail = Tail(file)
    assert tail.last(1) == ["two"]
    with file.open("a") as end:
        end.write("three\nfou")
    assert tail.new() == ["three"]
    with file.open("a") as end:
        end.write("r\n")
    assert tail.new() == ["four"]
    file.rename(tmp_path / "x.log.1")
    assert tail.new() == []
    file.write_text("five\n")
    assert tail.new() == ["five"]


def test_follow_shows_what_is_written_from_now_on(data: DataDir) -> None:
    command = [sys.executable, "-m", "homeagent", "logs", "-f", "-n", "1", "--json"]
    environment = {**os.environ, "HOMEAGENT_DATA_DIR": str(data.root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as following:
        assert following.stdout is not None
        assert "three" in following.stdout.readline()
        (data.log / "timer.log").write_text(line(4.0, "four"))
        assert "four" in following.stdout.readline()
        following.terminate()
