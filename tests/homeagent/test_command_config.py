from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homeagent.commands.config import typed
from homeagent_sdk.errors import Invalid, NotFound
from tests.homeagent.conftest import Command, FakeSystem, entry

KEY = "core.llm.sources.deepseek.api_key"


@pytest.fixture(autouse=True)
def settings(system: FakeSystem) -> None:
    stored = {
        "core.agent.max_tool_turns": entry("core.agent.max_tool_turns", 10, "int"),
        "core.agent.personal_prompt": entry("core.agent.personal_prompt", "be brief", "text", source="stored"),
        "plugin.mail.password": entry("plugin.mail.password", None, "secret", is_set=True),
    }

    def find(body: Any) -> Any:
        if body["key"] not in stored:
            raise NotFound(f"there is no setting {body['key']}", hint="`homeagent config list` shows all")
        return stored[body["key"]]

    def change(body: Any) -> Any:
        if body["value"] == -1:
            raise Invalid("core.agent.max_tool_turns must be 0 or more", field="value", hint="0 means without limit")
        return {**find(body), "value": body["value"], "source": "stored"}

    system.answer("kernel.config_get", find)
    system.answer("kernel.config_set", change)
    system.answer("kernel.config_unset", find)
    system.answer(
        "kernel.config_list",
        lambda body: {"entries": [row for key, row in stored.items() if key.startswith(body["prefix"])]},
    )
    system.answer("provider.set_key", {})


def test_get_prints_the_value_and_nothing_else(homeagent: Command) -> None:
    assert homeagent("config", "get", "core.agent.max_tool_turns").stdout == "10\n"
    assert homeagent("config", "get", "core.agent.max_tool_turns", "--json").json["type"] == "int"


def test_a_secret_is_never_printed(homeagent: Command) -> None:
    assert homeagent("config", "get", "plugin.mail.password").stdout == "(set, not shown)\n"


def test_an_unknown_key_says_what_to_do(homeagent: Command) -> None:
    ended = homeagent("config", "get", "core.nonsense")
    assert ended.exit_code == 1
    assert ended.stderr == "error: there is no setting core.nonsense\n  `homeagent config list` shows all\n"


def test_list_says_what_each_setting_means(homeagent: Command) -> None:
    ended = homeagent("config", "list", "core.agent")
    assert "what core.agent.max_tool_turns means" in ended.stdout
    assert "plugin.mail" not in ended.stdout
    assert len(homeagent("config", "list", "--json").json) == 3


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("7", "int", 7),
        ("0.5", "float", 0.5),
        ("yes", "bool", True),
        ("OFF", "bool", False),
        ("7", "string", "7"),
        ("5m", "duration", "5m"),
        ("many", "int", "many"),
        ("perhaps", "bool", "perhaps"),
    ],
)
def test_a_value_is_sent_in_the_type_of_its_setting(text: str, kind: str, expected: Any) -> None:
    assert typed(text, kind) == expected and type(typed(text, kind)) is type(expected)


def test_set_sends_the_value(homeagent: Command, system: FakeSystem) -> None:
    ended = homeagent("config", "set", "core.agent.max_tool_turns", "7")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert ended.stderr == "core.agent.max_tool_turns = 7\n"
    assert system.called("kernel.config_set") == [{"key": "core.agent.max_tool_turns", "value": 7}]


def test_set_reads_a_long_value_from_a_file(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("one\ntwo\n")
    homeagent("config", "set", "core.agent.personal_prompt", "--file", str(tmp_path / "prompt"))
    assert system.called("kernel.config_set")[0]["value"] == "one\ntwo\n"


def test_a_value_that_is_refused_ends_with_the_code_for_configuration(homeagent: Command) -> None:
    ended = homeagent("config", "set", "core.agent.max_tool_turns", "--", "-1")
    assert ended.exit_code == 3
    assert "0 means without limit" in ended.stderr


@pytest.mark.parametrize("arguments", [(), ("7", "--file", "/dev/null")])
def test_set_wants_a_value_or_a_file(homeagent: Command, arguments: tuple[str, ...]) -> None:
    assert homeagent("config", "set", "core.agent.max_tool_turns", *arguments).exit_code == 2


def test_unset_gives_the_default_again(homeagent: Command, system: FakeSystem) -> None:
    assert homeagent("config", "unset", "core.agent.max_tool_turns").exit_code == 0
    assert system.called("kernel.config_unset") == [{"key": "core.agent.max_tool_turns"}]


def test_the_key_of_a_source_goes_to_the_provider_alone(homeagent: Command, system: FakeSystem) -> None:
    ended = homeagent("config", "set", KEY, stdin="sk-very-secret\n")
    assert ended.exit_code == 0
    assert system.called("provider.set_key") == [{"source": "deepseek", "key": "sk-very-secret"}]
    assert not system.called("kernel.config_set")
    assert "sk-very-secret" not in ended.stdout + ended.stderr


def test_unset_has_the_provider_forget_a_key(homeagent: Command, system: FakeSystem) -> None:
    homeagent("config", "unset", KEY)
    assert system.called("provider.set_key") == [{"source": "deepseek", "key": None}]


@pytest.mark.parametrize("key", [KEY, "plugin.mail.password"])
def test_a_secret_on_the_command_line_is_refused(homeagent: Command, system: FakeSystem, key: str) -> None:
    ended = homeagent("config", "set", key, "sk-very-secret")
    assert ended.exit_code == 3
    assert "does not belong on the command line" in ended.stderr
    assert not system.called("provider.set_key") and not system.called("kernel.config_set")


def test_a_secret_setting_is_read_from_stdin(homeagent: Command, system: FakeSystem) -> None:
    homeagent("config", "set", "plugin.mail.password", stdin="letmein\n")
    assert system.called("kernel.config_set") == [{"key": "plugin.mail.password", "value": "letmein"}]


def test_a_key_file_must_be_private(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-from-file\n")
    file.chmod(0o644)
    ended = homeagent("config", "set", KEY, "--file", str(file))
    assert ended.exit_code == 5
    assert f"chmod 600 {file}" in ended.stderr
    file.chmod(0o600)
    assert homeagent("config", "set", KEY, "--file", str(file)).exit_code == 0
    assert system.called("provider.set_key") == [{"source": "deepseek", "key": "sk-from-file"}]


def test_an_empty_key_is_no_key(homeagent: Command, system: FakeSystem) -> None:
    assert homeagent("config", "set", KEY, stdin="\n").exit_code == 3
    assert not system.called("provider.set_key")


def test_a_file_that_is_not_there_is_named(homeagent: Command) -> None:
    ended = homeagent("config", "set", KEY, "--file", "/nonexistent/key")
    assert ended.exit_code == 1
    assert "/nonexistent/key" in ended.stderr
