"""The sample's tests, which are a sample too: a fake kernel on a bus in memory, no process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homeagent_sdk.testing import FakeKernel
from plugins.echo.main import plugin, seen

FOLDER = Path(__file__).parent.parent.parent / "plugins" / "echo"


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[FakeKernel]:
    kernel = FakeKernel()
    async with kernel.run(plugin, FOLDER, tmp_path):
        yield kernel


async def test_it_returns_the_text_unchanged(kernel: FakeKernel) -> None:
    assert await kernel.call_tool("echo", "echo", {"text": "你好"}) == {"content": "你好", "is_error": False}


async def test_it_repeats_as_often_as_the_setting_allows(kernel: FakeKernel) -> None:
    await kernel.set_setting("echo", "max_times", 2)
    assert (await kernel.call_tool("echo", "echo", {"text": "a", "times": 2}))["content"] == "a a"
    answer = await kernel.call_tool("echo", "echo", {"text": "a", "times": 3})
    assert answer["error"]["field"] == "times" and answer["error"]["hint"] == "give 1 to 2"


async def test_it_watches_calls_without_changing_them(kernel: FakeKernel) -> None:
    before = seen.calls
    answer = await kernel.run_stage("echo", "before_toolcall", {"tool": "echo", "arguments": {"text": "a"}})
    assert answer == {"changes": {}, "response": None}
    told = await kernel.call_tool("echo", "echo_seen", channel="cli")
    assert told["content"]["seen"]["calls"] == before + 1 and told["content"]["channel"] == "cli"


async def test_the_model_is_told_what_its_tools_take(kernel: FakeKernel) -> None:
    tools = {tool["name"]: tool for tool in kernel.registered["echo"]["tools"]}
    assert tools["echo"]["parameters"]["properties"]["times"]["type"] == "integer"
    assert tools["echo"]["flags"]["idempotent"] is True
