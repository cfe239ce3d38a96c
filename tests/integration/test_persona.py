"""The personality through the real processes: chosen in a conversation, kept through kill -9, taken from the file."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.openai_server import FakeOpenAI, text, tool_call
from tests.home import Home

PIRATE = "You are a pirate, and say arr."
CAT = "你是一只猫，说话简短。"


def fixed(request: Any) -> str:
    return str(next(each["content"] for each in request.messages if each["role"] == "system"))


def show(home: Home, *options: str) -> dict[str, Any]:
    done = home.command("persona", "show", "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_choice_outlives_the_kill_of_the_kernel_and_a_changed_file_wins_at_the_next_start(
    home: Home, far_end: FakeOpenAI
) -> None:
    with home:
        assert home.say("hi")[0] == 200
        asked = far_end.chats[-1]
        assert "<first_run>" in asked.last_user and "persona_set" in asked.tool_names
        assert "<first_run>" not in fixed(asked)

        far_end.push(tool_call("persona_set", {"mode": "custom", "content": PIRATE}), text("arr"))
        assert home.say("be a pirate") == (200, "arr")
        home.kill("kernel")
        home.wait_ready()
        assert home.say("hi again")[0] == 200
        after = far_end.chats[-1]
        assert PIRATE in fixed(after)
        assert "<first_run>" not in after.last_user and "persona_set" not in after.tool_names
        assert show(home)["content"] == PIRATE and show(home)["origin"] == "conversation"
    home.process = None
    (home.data_dir / "personal.md").write_text(CAT, encoding="utf-8")
    with home:
        assert "personal.md" in home.stderr()
        home.say("and now?")
        assert CAT in fixed(far_end.chats[-1]) and PIRATE not in fixed(far_end.chats[-1])
        assert show(home, "--previous")["content"] == PIRATE
        assert home.command("persona", "reset").returncode == 0
        assert show(home)["origin"] == "built_in" and show(home, "--previous")["content"] == CAT
        home.say("the default one again")
        assert CAT not in fixed(far_end.chats[-1])
    home.process = None
    with home:
        assert show(home)["origin"] == "built_in", "the file has not changed since it was imported"
