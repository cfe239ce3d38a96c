from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homeagent.commands import source as source_command
from homeagent_sdk.errors import Unavailable
from tests.homeagent.conftest import SOURCE, Command, FakeSystem, entry

ADD = ("source", "add", "deepseek", "--base-url", "https://api.example.com/v1", "--model", "deepseek-chat")
PREFIX = "core.llm.sources.deepseek."


@pytest.fixture(autouse=True)
def registry(system: FakeSystem) -> None:
    system.answer("kernel.config_set", {})
    system.answer("kernel.config_unset", {})
    system.answer("provider.set_key", {})


def test_add_writes_the_settings_of_a_source_with_its_address_last(homeagent: Command, system: FakeSystem) -> None:
    assert homeagent(*ADD, "--context-window", "65536").exit_code == 0
    assert {body["key"].removeprefix(PREFIX): body["value"] for body in system.called("kernel.config_set")} == {
        "model": "deepseek-chat",
        "adapter": "openai",
        "base_url": "https://api.example.com/v1",
        "context_window": 65536,
    }
    assert not system.called("provider.set_key")


def test_the_key_is_read_from_stdin_or_a_private_file(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-file")
    file.chmod(0o600)
    homeagent(*ADD, "--key", stdin="sk-stdin\n")
    homeagent(*ADD, "--key-file", str(file))
    assert [body["key"] for body in system.called("provider.set_key")] == ["sk-stdin", "sk-file"]


def test_nothing_is_written_when_the_key_cannot_be_read(homeagent: Command, system: FakeSystem) -> None:
    assert homeagent(*ADD, "--key", stdin="").exit_code == 3
    assert not system.calls


def test_list_shows_the_sources_in_their_order(homeagent: Command, system: FakeSystem) -> None:
    second = {**SOURCE, "name": "ollama", "state": "cooling", "reason": "connection refused"}
    system.answer("provider.sources", {"sources": [SOURCE, second]})
    shown = homeagent("source", "list").stdout
    assert shown.index("deepseek") < shown.index("ollama")
    assert "connection refused" in shown
    assert [row["name"] for row in homeagent("source", "list", "--json").json] == ["deepseek", "ollama"]


def test_an_empty_list_says_how_to_add_one(homeagent: Command, system: FakeSystem) -> None:
    system.answer("provider.sources", {"sources": []})
    assert "homeagent source add" in homeagent("source", "list").stderr


def test_remove_takes_away_what_was_stored_and_the_key(homeagent: Command, system: FakeSystem) -> None:
    entries = [
        entry(PREFIX + "adapter", "openai"),
        entry(PREFIX + "model", "deepseek-chat", source="stored"),
        entry(PREFIX + "base_url", "https://api.example.com/v1", source="stored"),
    ]
    system.answer("kernel.config_list", {"entries": entries})
    assert homeagent("source", "remove", "deepseek").exit_code == 0
    assert [body["key"] for body in system.called("kernel.config_unset")] == [PREFIX + "base_url", PREFIX + "model"]
    assert system.called("provider.set_key") == [{"source": "deepseek", "key": None}]


def test_a_source_that_is_not_there_cannot_be_removed(homeagent: Command, system: FakeSystem) -> None:
    system.answer("kernel.config_list", {"entries": []})
    ended = homeagent("source", "remove", "nothing")
    assert ended.exit_code == 1 and "`homeagent source list`" in ended.stderr


class FakeChat:
    """Answers with one outcome; notes with what options it was made."""

    outcome: dict[str, Any]
    options: dict[str, Any]

    def __init__(self, _: Any, __: str, *, options: dict[str, Any]) -> None:
        type(self).options = options

    async def send(self, _: str) -> Any:
        yield {"type": "outcome", **self.outcome}


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> type[FakeChat]:
    monkeypatch.setattr(source_command, "ChatConnection", FakeChat)
    return FakeChat


def test_a_test_asks_the_model_of_the_source_and_is_not_remembered(homeagent: Command, chat: type[FakeChat]) -> None:
    chat.outcome = {"outcome": "answer", "text": "ready", "model": "deepseek-chat"}
    ended = homeagent("source", "test", "deepseek")
    assert (ended.exit_code, ended.stdout) == (0, "ready\n")
    assert chat.options == {"model": "deepseek-chat", "no_memory": True}


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"outcome": "error", "error": Unavailable("all sources failed").to_wire()}, "all sources failed"),
        ({"outcome": "answer", "text": "", "model": "deepseek-chat"}, "empty text"),
        ({"outcome": "answer", "text": "ready", "model": "tiny"}, "tiny answered instead"),
    ],
)
def test_a_test_that_failed_says_why(
    homeagent: Command, chat: type[FakeChat], outcome: dict[str, Any], words: str
) -> None:
    chat.outcome = outcome
    ended = homeagent("source", "test", "deepseek")
    assert ended.exit_code == 1 and words in ended.stderr


def test_a_source_that_is_not_there_cannot_be_tested(homeagent: Command) -> None:
    assert homeagent("source", "test", "nothing").exit_code == 1
