from __future__ import annotations

from pathlib import Path
from typing import Any

from homeagent_sdk.testing import FakeKernel
from plugins.webui.agent import lane_conversation, own_conversation
from plugins.webui.history_index import POINTS, HistoryIndex
from tests.plugins.webui.conftest import Web, running


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]


def conversations_of(web: Web) -> list[str]:
    return [submission["conversation"] for submission in web.kernel.submissions]


async def test_the_metadata_name_the_conversation_before_the_user(web: Web) -> None:
    await web.answer(say="a", metadata={"conversation": "x"}, user="y")
    await web.answer(say="b", user="y")
    assert conversations_of(web) == ["owner/x", "owner/y"]


async def test_nobody_enters_the_lane_of_another(web: Web) -> None:
    await web.answer(say="a", metadata={"conversation": "x"})
    await web.answer(say="a", metadata={"conversation": "x"}, key="ha-member")
    await web.answer(say="a", metadata={"conversation": "owner/x"}, key="ha-member")
    assert conversations_of(web) == ["owner/x", "member/x", "member/owner/x"]


def test_a_principal_with_a_slash_cannot_pose_as_another() -> None:
    assert lane_conversation("a/b", "c") != lane_conversation("a", "b/c")
    assert own_conversation("a/b", lane_conversation("a/b", "c")) == "c"
    assert own_conversation("a", lane_conversation("a/b", "c")) is None


async def test_a_history_that_the_client_sends_along_is_recognised(web: Web) -> None:
    web.kernel.script = lambda s: [{"type": "outcome", "outcome": "answer", "text": f"re: {s['text']}"}]
    await web.answer(messages=said("one"))
    await web.answer(messages=said("one", "re: one", "two"))
    await web.answer(messages=said("one", "re: one ", "two", "re: two", "three"))
    assert len(set(conversations_of(web))) == 1


async def test_a_new_or_unknown_history_is_a_new_conversation(web: Web) -> None:
    await web.answer(messages=said("one"))
    await web.answer(messages=said("one"))
    await web.answer(messages=said("elsewhere", "yes", "one"))
    assert len(set(conversations_of(web))) == 3


async def test_two_conversations_that_began_alike_stay_apart(web: Web) -> None:
    for _ in range(2):
        await web.answer(messages=said("hi"))
    await web.answer(messages=said("hi", "hi", "left"))
    await web.answer(messages=said("hi", "hi", "right"))
    await web.answer(messages=said("hi", "hi", "left", "left", "on"))
    await web.answer(messages=said("hi", "hi", "right", "right", "on"))
    _, _, left, right, left_on, right_on = conversations_of(web)
    assert left != right
    assert (left_on, right_on) == (left, right)


async def test_the_history_of_another_principal_is_not_recognised(web: Web) -> None:
    await web.answer(messages=said("hi"))
    await web.answer(messages=said("hi", "hi", "and?"), key="ha-member")
    first, second = conversations_of(web)
    assert first.partition("/")[2] != second.partition("/")[2]


async def test_a_regenerated_answer_stays_in_its_conversation(web: Web) -> None:
    await web.answer(messages=said("hi"))
    await web.answer(messages=said("hi", "hi", "what?"))
    await web.answer(messages=said("hi", "hi", "what?"))
    assert len(set(conversations_of(web))) == 1


async def test_tool_messages_and_system_prompts_do_not_matter(web: Web) -> None:
    await web.answer(messages=said("hi"))
    messages: list[dict[str, Any]] = said("hi", "hi", "more")
    messages.insert(0, {"role": "system", "content": "It is 10:03"})
    messages.insert(2, {"role": "assistant", "content": None, "tool_calls": []})
    messages.insert(3, {"role": "tool", "content": "x", "tool_call_id": "1"})
    await web.answer(messages=messages)
    assert len(set(conversations_of(web))) == 1


async def test_recognition_outlives_a_restart_of_the_plugin(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async for web in running(kernel, tmp_path / "webui"):
        await web.answer(messages=said("hi"))
    async for web in running(kernel, tmp_path / "webui"):
        await web.answer(messages=said("hi", "hi", "and?"))
        assert len(set(conversations_of(web))) == 1


async def test_the_answer_names_its_conversation_to_go_on_with(web: Web) -> None:
    name = (await web.answer(say="hi"))["homeagent"]["conversation"]
    await web.answer(say="again", metadata={"conversation": name})
    assert len(set(conversations_of(web))) == 1


def test_the_index_is_bounded_and_forgets_what_was_not_used_longest() -> None:
    index = HistoryIndex()
    for number in range(POINTS + 10):
        index.answered("p", [("user", str(number))], "a", f"c{number}")
        index.find("p", [("user", "0"), ("assistant", "a")])
    assert index.find("p", [("user", "0"), ("assistant", "a")]) == "c0"
    assert index.find("p", [("user", "1"), ("assistant", "a")]) is None
    assert index.find("p", [("user", str(POINTS + 9)), ("assistant", "a")]) == f"c{POINTS + 9}"
    assert len(index) == POINTS


def test_messages_cannot_be_cut_otherwise_to_the_same_digest() -> None:
    index = HistoryIndex()
    index.answered("p", [("user", "a\x00assistant\x001\x00b")], "c", "one")
    assert index.find("p", [("user", "a"), ("assistant", "b"), ("assistant", "c")]) is None
