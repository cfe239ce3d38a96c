from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from homeagent.launcher.personal_file import import_personal_file
from homeagent.persona_file import MOST_BYTES, PERSONAL_FILE, read_persona
from homeagent_sdk.errors import Invalid, NotFound, Unavailable
from homeagent_sdk.paths import DataDir
from kernel.prompt import persona as kernel_persona
from tests.homeagent.conftest import Command, FakeSystem

PERSONA: dict[str, Any] = {
    "content": "You are a pirate.",
    "origin": "conversation",
    "changed_at": 1_796_000_000.0,
    "tokens": 5,
    "choice": "custom",
    "is_choice_open": False,
}


@pytest.fixture
def system(system: FakeSystem) -> FakeSystem:
    system.answer("kernel.persona_get", PERSONA)
    system.answer("kernel.persona_set", {"changed": True, **PERSONA})
    system.answer("kernel.persona_reset", {"changed": True, **PERSONA})
    return system


def test_show_prints_the_persona_alone_and_tells_its_origin_and_cost(homeagent: Command, system: FakeSystem) -> None:
    ended = homeagent("persona", "show")
    assert (ended.exit_code, ended.stdout) == (0, "You are a pirate.\n")
    assert "set in a conversation with the owner, since 2026-" in ended.stderr
    assert "about 5 tokens in every turn" in ended.stderr
    assert homeagent("persona", "show", "--json").json == PERSONA
    assert system.called("kernel.persona_get") == [{"previous": False}] * 2


@pytest.mark.parametrize("origin", ["conversation", "command", "file", "personal.md", "setting", "built_in"])
def test_each_origin_has_its_words(homeagent: Command, system: FakeSystem, origin: str) -> None:
    system.answer("kernel.persona_get", {**PERSONA, "origin": origin, "changed_at": None})
    assert "persona_from" not in homeagent("persona", "show").stderr


def test_show_previous(homeagent: Command, system: FakeSystem) -> None:
    homeagent("persona", "show", "--previous")
    assert system.called("kernel.persona_get") == [{"previous": True}]
    system.answer("kernel.persona_get", NotFound("there is no earlier one"))
    ended = homeagent("persona", "show", "--previous")
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert "there is no earlier one" in ended.stderr


def test_set_and_reset(homeagent: Command, system: FakeSystem) -> None:
    ended = homeagent("persona", "set", "你是一只猫。")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert "tokens" in ended.stderr and "--previous" in ended.stderr
    assert system.called("kernel.persona_set") == [{"content": "你是一只猫。", "origin": "command"}]
    assert homeagent("persona", "reset").exit_code == 0
    assert system.called("kernel.persona_reset") == [{}]
    system.answer("kernel.persona_reset", {"changed": False, **PERSONA})
    assert "the same as before" in homeagent("persona", "reset").stderr


def test_import_reads_the_file_itself(homeagent: Command, system: FakeSystem, tmp_path: Path) -> None:
    (tmp_path / "p.md").write_text("You are a cat.\n猫\n", encoding="utf-8")
    assert homeagent("persona", "import", str(tmp_path / "p.md")).exit_code == 0
    assert system.called("kernel.persona_set") == [{"content": "You are a cat.\n猫\n", "origin": "file"}]


@pytest.mark.parametrize(
    ("content", "words", "code"),
    [
        (b"x" * (MOST_BYTES + 1), "more than 16384 bytes", 3),
        (b"caf\xe9", "UTF-8 (byte 3)", 3),
        (None, "No such file", 1),
    ],
)
def test_a_file_that_cannot_be_a_persona_is_refused_before_anything_is_sent(
    homeagent: Command, system: FakeSystem, tmp_path: Path, content: bytes | None, words: str, code: int
) -> None:
    if content is not None:
        (tmp_path / "p.md").write_bytes(content)
    ended = homeagent("persona", "import", str(tmp_path / "p.md"))
    assert ended.exit_code == code
    assert words in ended.stderr
    assert not system.called("kernel.persona_set")


def test_what_the_kernel_refuses_is_told(homeagent: Command, system: FakeSystem) -> None:
    system.answer("kernel.persona_set", Invalid("The personality is empty", hint="reset it"))
    ended = homeagent("persona", "set", " ")
    assert ended.exit_code == 3
    assert "is empty" in ended.stderr and "reset it" in ended.stderr


def test_the_command_and_the_kernel_agree_on_the_limit_and_on_the_name_of_the_file() -> None:
    assert (MOST_BYTES, PERSONAL_FILE) == (kernel_persona.MOST_BYTES, kernel_persona.PERSONAL_FILE)


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "p.md").write_bytes(b"x" * MOST_BYTES)
    assert len(read_persona(tmp_path / "p.md")) == MOST_BYTES


# -- personal.md at a start -------------------------------------------------------------------------------------------


class Kernel:
    """Answers ``kernel.persona_set``."""

    def __init__(self, reply: Any = None) -> None:
        self.reply = reply or {"changed": True, **PERSONA}
        self.bodies: list[dict[str, Any]] = []

    async def call(self, method: str, body: dict[str, Any]) -> Any:
        assert method == "kernel.persona_set"
        self.bodies.append(body)
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply


async def test_without_the_file_nothing_is_asked(data: DataDir) -> None:
    kernel = Kernel()
    assert await import_personal_file(kernel.call, data) is None
    assert not kernel.bodies


async def test_a_start_hands_the_file_to_the_kernel_and_says_so_if_it_was_new(data: DataDir) -> None:
    (data.root / "personal.md").write_text("You are a cat.", encoding="utf-8")
    kernel = Kernel()
    notice = await import_personal_file(kernel.call, data)
    assert notice is not None and "personal.md" in notice and "5 tokens" in notice
    assert kernel.bodies == [{"content": "You are a cat.", "origin": "personal.md"}]
    kernel.reply = {"changed": False, **PERSONA}
    assert await import_personal_file(kernel.call, data) is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 20_000])
async def test_a_file_that_cannot_be_used_is_a_remark_and_no_hindrance(data: DataDir, content: bytes) -> None:
    (data.root / "personal.md").write_bytes(content)
    kernel = Kernel()
    notice = await import_personal_file(kernel.call, data)
    assert notice is not None and notice.startswith("warning: ") and "personal.md" in notice
    assert not kernel.bodies


async def test_a_refusal_of_the_kernel_and_a_folder_of_that_name_are_remarks_too(data: DataDir) -> None:
    path = data.root / "personal.md"
    path.write_text("You are a cat.", encoding="utf-8")
    notice = await import_personal_file(Kernel(Unavailable("the disk is full")).call, data)
    assert notice is not None and "the disk is full" in notice
    path.unlink()
    path.mkdir()
    notice = await import_personal_file(Kernel().call, data)
    assert notice is not None and "Is a directory" in notice
