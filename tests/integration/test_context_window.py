"""A conversation longer than the model's window: no prompt exceeds it, and what was said first can still be found."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.fakes.openai_server import FakeOpenAI, tool_call
from tests.home import Home, wait_until

WINDOW = 8_000
FACT = (
    "My cat is called Schrödinger and its vet is 张伟诊所 on Kastanienallee 7. "
    + "It sleeps in a box by the stove. " * 12
)
FILLER = "and then we spoke at length of the weather in spring, of trains that are late and of the price of butter"


@pytest.fixture
def narrow(tmp_path: Path, far_end: FakeOpenAI) -> Iterator[Home]:
    """A HomeAgent whose model has a small window."""
    home = Home(tmp_path, far_end.url, HOMEAGENT_LLM_CONTEXT_WINDOW=str(WINDOW))
    with home:
        yield home


def tiers(home: Home) -> dict[str, int]:
    """Return how many events the memory has in each tier."""
    connection = apsw.Connection(str(home.data_dir / "memory" / "memory.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return dict(connection.execute("SELECT tier, count(*) FROM event GROUP BY tier"))
    finally:
        connection.close()


def tier_of(home: Home, text: str) -> str:
    connection = apsw.Connection(str(home.data_dir / "memory" / "memory.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return str(connection.execute("SELECT tier FROM event WHERE input = ?", (text,)).get)
    finally:
        connection.close()


def say(home: Home, text: str) -> str:
    status, answer = home.say(text, "long")
    assert status == 200, answer
    return answer


def test_in_sixty_turns_of_a_small_window_nothing_is_lost_and_no_prompt_is_too_long(
    narrow: Home, far_end: FakeOpenAI
) -> None:
    said = [FACT, *(f"number {number}: {FILLER} {FILLER} {FILLER}" for number in range(60))]
    for text in said:
        say(narrow, text)
    sizes = [len(json.dumps(request.body, ensure_ascii=False).encode()) / 4 for request in far_end.chats]
    assert max(sizes) < WINDOW
    # Where a prompt begins otherwise than the one before it, there was a prune.
    prompts = [request.messages for request in far_end.chats]
    prunes = sum(after[: len(before) - 1] != before[:-1] for before, after in itertools.pairwise(prompts))
    assert 3 <= prunes <= 20

    wait_until(lambda: sum(tiers(narrow).values()) == 61, what="every turn in the memory")
    assert tiers(narrow)["document"] > 20
    assert tier_of(narrow, FACT) == "document"
    assert "Schrödinger" in say(narrow, "recall: what is my cat called?")

    found = say(narrow, 'call tool doc_query {"query": "Kastanienallee"}')
    assert "its vet is 张伟诊所" in found
    assert "back in the context at their own times: 1 event" in found
    assert tier_of(narrow, FACT) == "context"
    assert max(len(json.dumps(request.body, ensure_ascii=False).encode()) / 4 for request in far_end.chats) < WINDOW


def test_the_model_writes_notes_and_reads_them_again(narrow: Home, far_end: FakeOpenAI) -> None:
    far_end.push(tool_call("get_plugin_tools", {"plugin_name": "memory"}))
    far_end.push(tool_call("doc_commit", {"content": "the boat is moored at berth 4711", "tags": ["boat"]}))
    assert "stored note-" in say(narrow, "keep in mind where the boat is")
    offered = [set(request.tool_names) for request in far_end.chats[:2]]
    assert "doc_query" in offered[0]
    assert {"doc_query", "doc_commit", "coldcontext_query"} <= offered[1]
    assert "berth 4711" in say(narrow, "recall: where is the boat moored?")
    assert "(boat): the boat is moored at berth 4711" in say(narrow, 'call tool doc_query {"query": "berth 4711"}')
    assert "top_k" in say(narrow, 'call tool doc_query {"query": "berth 4711", "top_k": 99}')
