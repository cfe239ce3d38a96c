"""The registry of the memory's tools: what the kernel is told, and what a call that is wrong gets."""

from __future__ import annotations

from typing import Any

import pytest

from homeagent_sdk.errors import Conflict, Invalid, NotFound, Unavailable
from homeagent_sdk.testing.local_bus import LocalBus
from memory_service.fields import Fields
from memory_service.tools import Asking, MemoryTool, ToolRegistry

CONTEXT = {
    "turn_id": "t1",
    "call_id": "t1-c1",
    "channel": "webui",
    "conversation": "c1",
    "principal": "owner",
    "speaker": None,
    "audience": ["owner"],
}


async def echo(arguments: Fields, asking: Asking) -> Any:
    return f"{asking.speaker}: {arguments.text('word')}"


def a_tool(name: str = "echo", run: Any = echo) -> MemoryTool:
    return MemoryTool(name, "Say it again.", {"word": {"type": "string"}}, run, required=("word",), idempotent=True)


@pytest.fixture
def registry(bus: LocalBus) -> ToolRegistry:
    registry = ToolRegistry(bus.peer("memory"))
    registry.add([a_tool()])
    registry.serve()
    return registry


async def run(bus: LocalBus, arguments: Any, tool: str = "echo", context: Any = CONTEXT) -> Any:
    body = {"tool": tool, "arguments": arguments, "context": context}
    return await bus.peer("kernel", "kernel").call("memory.tool", body)


async def test_the_kernel_is_told_at_each_welcome_and_again_until_it_listens(
    bus: LocalBus, registry: ToolRegistry
) -> None:
    told: list[Any] = []

    async def register(body: Any, call: Any) -> dict[str, Any]:
        told.append(body)
        if len(told) == 1:
            raise Unavailable("not yet")
        return {}

    bus.peer("kernel", "kernel").serve("kernel.register", register)
    await bus.peers["memory"].start()
    await bus.peers["memory"].start()
    assert len(told) == 3
    assert told[2] == told[1]
    (tool,) = told[1]["tools"]
    assert tool["name"] == "echo"
    assert tool["parameters"]["required"] == ["word"]
    assert tool["flags"]["no_memory"] is True
    assert tool["flags"]["idempotent"] is True


async def test_a_kernel_that_refuses_the_tools_does_not_stop_the_memory(bus: LocalBus, registry: ToolRegistry) -> None:
    async def register(body: Any, call: Any) -> dict[str, Any]:
        raise Conflict("the name is taken")

    bus.peer("kernel", "kernel").serve("kernel.register", register)
    await bus.peers["memory"].start()
    assert (await run(bus, {"word": "hello"}))["is_error"] is False


async def test_a_tool_gets_its_arguments_and_who_asks(bus: LocalBus, registry: ToolRegistry) -> None:
    assert await run(bus, {"word": "hello"}) == {"content": "owner: hello", "is_error": False}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "word"),
        (None, "word"),
        ({"word": 5}, "word"),
        ({"word": "a", "loud": True}, "loud"),
        (["word"], "arguments"),
        ({"word": "\ud800"}, "word"),
    ],
)
async def test_a_wrong_argument_is_an_error_that_names_it(registry: ToolRegistry, arguments: Any, field: str) -> None:
    body = {"tool": "echo", "arguments": arguments, "context": CONTEXT}
    answer = await registry.run(body, None)  # type: ignore[arg-type]
    assert answer["is_error"] is True
    assert answer["content"] is None
    assert (answer["error"]["field"], answer["error"]["reason"]) == (field, "invalid")


async def test_a_tool_that_breaks_is_an_error_without_a_traceback(bus: LocalBus, registry: ToolRegistry) -> None:
    async def breaks(arguments: Fields, asking: Asking) -> Any:
        raise ZeroDivisionError("secret")

    registry.add([a_tool("broken", breaks)])
    answer = await run(bus, {"word": "x"}, "broken")
    assert answer["error"]["reason"] == "internal"
    assert "secret" not in str(answer)


@pytest.mark.parametrize("audience", [[], None, "owner"])
async def test_a_call_without_an_audience_is_refused(bus: LocalBus, registry: ToolRegistry, audience: Any) -> None:
    with pytest.raises(Invalid) as caught:
        await run(bus, {"word": "x"}, context={**CONTEXT, "audience": audience})
    assert caught.value.field == "context.audience"


async def test_a_tool_that_is_not_there_is_not_found(bus: LocalBus, registry: ToolRegistry) -> None:
    with pytest.raises(NotFound):
        await run(bus, {}, "nothing")


def test_a_name_is_given_once(registry: ToolRegistry) -> None:
    with pytest.raises(Conflict):
        registry.add([a_tool()])
