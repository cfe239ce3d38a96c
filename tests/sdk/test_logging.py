from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from homeagent_sdk import logging as service_logging

HA_KEY = "ha-" + "Ab1_-" * 8 + "xyz"


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.captureWarnings(False)
    structlog.reset_defaults()
    service_logging._known_secrets.clear()


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    service_logging.configure("memory", tmp_path, "info")
    return tmp_path / "log" / "memory.log"


def written(file: Path) -> list[dict[str, Any]]:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, service_logging._Bridge):
            handler._sink._file.flush()
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_event_becomes_one_json_line(log_file: Path) -> None:
    structlog.get_logger().info("memory.started", events=3, path="数据")
    (line,) = written(log_file)
    assert line.pop("time") > 1e9
    assert line == {"level": "info", "service": "memory", "event": "memory.started", "events": 3, "path": "数据"}
    assert "数据" in log_file.read_text(), "Chinese stays readable"


def test_the_name_of_a_logger_is_a_field(log_file: Path) -> None:
    service_logging.get_logger("bus").info("one")
    structlog.get_logger("turns").info("two")
    service_logging.get_logger().info("three")
    assert [line.get("logger") for line in written(log_file)] == ["bus", "turns", None]


def test_a_logger_made_before_the_configuration_follows_it(tmp_path: Path) -> None:
    log = service_logging.get_logger("early")
    service_logging.configure("x", tmp_path)
    log.info("one")
    assert [line["event"] for line in written(tmp_path / "log" / "x.log")] == ["one"]


def test_no_console_renderer_is_loaded() -> None:
    program = "import homeagent_sdk.logging, sys; print('rich' in sys.modules, 'rich.console' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "False False\n"


def test_only_its_owner_may_read_the_file(log_file: Path) -> None:
    structlog.get_logger().info("x")
    written(log_file)
    assert log_file.stat().st_mode & 0o777 == 0o600


def test_what_is_below_the_level_is_not_written(log_file: Path) -> None:
    structlog.get_logger().debug("quiet")
    service_logging.set_level("debug")
    structlog.get_logger().debug("loud")
    assert [line["event"] for line in written(log_file)] == ["loud"]


def test_the_environment_gives_the_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMEAGENT_LOG_LEVEL", "error")
    service_logging.configure("x", tmp_path)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("loud")
    assert [line["event"] for line in written(tmp_path / "log" / "x.log")] == ["loud"]


def test_the_standard_library_and_warnings_go_to_the_same_file(log_file: Path) -> None:
    logging.getLogger("aiohttp.access").warning("slow %s", "GET", extra={"status": 200, "token": HA_KEY})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    access, warning = written(log_file)
    assert (access["event"], access["logger"], access["status"]) == ("slow GET", "aiohttp.access", 200)
    assert access["token"] == "***"
    assert "old" in warning["event"]


def test_a_traceback_is_one_field(log_file: Path) -> None:
    for log in (structlog.get_logger().exception, logging.getLogger("x").exception):
        try:
            raise ValueError(f"bad {HA_KEY}")
        except ValueError:
            log("failed")
    for line in written(log_file):
        assert "ValueError: bad ***" in line["exception"] and line["level"] == "error"


def test_configuring_again_does_not_write_twice(log_file: Path, tmp_path: Path) -> None:
    service_logging.configure("memory", tmp_path, "info")
    logging.getLogger("x").warning("once")
    assert len(written(log_file)) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"api_key": "abcdef"}, {"api_key": "***"}),
        ({"headers": {"Authorization": "Bearer abc"}}, {"headers": {"Authorization": "***"}}),
        ({"body": [{"password": "p"}]}, {"body": [{"password": "***"}]}),
        ({"token": "abc", "prompt_tokens": 7}, {"token": "***", "prompt_tokens": 7}),
        ({"api_key": None, "key": "core.llm.model"}, {"api_key": None, "key": "core.llm.model"}),
        ({"text": f"with {HA_KEY}."}, {"text": "with ***."}),
        ({"text": "sk-proj-0123456789 and Bearer xyz"}, {"text": "*** and Bearer ***"}),
        ({"pair": ("sk-0123456789", 1)}, {"pair": ["***", 1]}),
    ],
)
def test_secrets_are_masked_wherever_they_stand(
    log_file: Path, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    structlog.get_logger().info("x", **fields)
    (line,) = written(log_file)
    assert {key: line[key] for key in expected} == expected


def test_a_secret_of_any_look_can_be_hidden(log_file: Path) -> None:
    service_logging.hide("plain-looking")
    service_logging.hide("")
    structlog.get_logger().info("it is plain-looking")
    assert written(log_file)[0]["event"] == "it is ***"


def test_what_json_cannot_carry_is_shown_as_text(log_file: Path) -> None:
    structlog.get_logger().info("x", path=Path("/a"), deep={"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}})
    assert "/a" in written(log_file)[0]["path"]


def test_the_file_turns_over_and_three_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_logging, "LOG_FILE_BYTES", 200)
    service_logging.configure("x", tmp_path)
    file = tmp_path / "log" / "x.log"
    for number in range(12):
        structlog.get_logger().info("y" * 60, number=number)
        written(file)
    assert sorted(os.listdir(file.parent)) == ["x.log", "x.log.1", "x.log.2"]
    lines = [line for name in ("x.log.2", "x.log.1", "x.log") for line in (file.parent / name).read_text().splitlines()]
    kept = [json.loads(line)["number"] for line in lines]
    assert kept == list(range(kept[0], 12)), "nothing is lost at the turn but the oldest"


def test_a_full_queue_drops_lines_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_logging, "_QUEUE_LINES", 2)
    file = service_logging._LogFile(tmp_path / "x.log")
    monkeypatch.setattr(file, "_start", lambda: None)
    for _ in range(5):
        file.write("{}")
    monkeypatch.undo()
    file.flush()
    file._start()
    file.flush()
    assert "3 lines lost" in (tmp_path / "x.log").read_text()


def test_a_disk_that_is_full_does_not_stop_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "x.log").symlink_to("/dev/full")
    service_logging.configure("x", tmp_path)
    structlog.get_logger().info("one")
    for handler in logging.getLogger().handlers:
        if isinstance(handler, service_logging._Bridge):
            handler._sink._file.flush()
    assert "cannot write" in capsys.readouterr().err


def test_no_thread_exists_before_the_first_line(tmp_path: Path) -> None:
    before = threading.active_count()
    service_logging.configure("zygote", tmp_path)
    assert threading.active_count() == before


def test_a_person_at_a_terminal_reads_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    service_logging.configure("kernel", tmp_path)
    structlog.get_logger().warning("disk nearly full", api_key="abc", free=3)
    assert screen.getvalue().split()[1:] == ["warning", "kernel", "disk", "nearly", "full", "api_key=***", "free=3"]


def test_a_quiet_command_writes_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    service_logging.be_quiet()
    structlog.get_logger("bus").error("the kernel is lost")
    logging.getLogger("asyncio").error("slow")
    assert capfd.readouterr() == ("", "")


def test_a_process_that_ends_has_written_all(tmp_path: Path) -> None:
    program = (
        "import sys, structlog; from pathlib import Path; from homeagent_sdk.logging import configure\n"
        "configure('x', Path(sys.argv[1]))\n"
        "for number in range(500): structlog.get_logger().info('line', number=number)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
    lines = (tmp_path / "log" / "x.log").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(500))
