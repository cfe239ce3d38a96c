"""The memory follows its settings: at each welcome, and when one is changed."""

from __future__ import annotations

from typing import Any

import pytest

from homeagent_sdk.bus.abc import CallContext
from homeagent_sdk.errors import Unavailable
from homeagent_sdk.testing.local_bus import LocalBus
from memory_service.settings import Settings


class Kernel:
    def __init__(self, bus: LocalBus) -> None:
        self.values: dict[str, Any] = {"core.memory.conversation_log": True}
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.peer = bus.peer("kernel", "kernel")
        self.peer.serve("kernel.config_list", self._list)

    async def _list(self, body: Any, call: CallContext) -> Any:
        self.asked.append(body["prefix"])
        if self.error is not None:
            raise self.error
        return {"entries": [{"key": key, "value": value} for key, value in self.values.items()]}


@pytest.fixture
def kernel(bus: LocalBus) -> Kernel:
    return Kernel(bus)


@pytest.fixture
async def told(bus: LocalBus, kernel: Kernel) -> list[dict[str, Any]]:
    """Return what a part of the memory was told, after the first welcome."""
    peer = bus.peer("memory")
    settings, told = Settings(peer), list[dict[str, Any]]()

    async def tell(values: dict[str, Any]) -> None:
        told.append(values)

    settings.on_change(tell)
    settings.serve()
    await peer.start()
    return told


async def test_they_are_told_at_the_first_welcome(told: list[dict[str, Any]], kernel: Kernel) -> None:
    assert told == [{"core.memory.conversation_log": True}]
    assert kernel.asked == ["core.memory."]


async def test_a_change_is_told_at_once_and_another_s_is_not(told: list[dict[str, Any]], kernel: Kernel) -> None:
    kernel.values["core.memory.conversation_log"] = False
    await kernel.peer.publish("config.changed", {"keys": ["core.log.level"]})
    assert len(told) == 1
    await kernel.peer.publish("config.changed", {"keys": ["core.memory.conversation_log"]})
    assert told[1:] == [{"core.memory.conversation_log": False}]


async def test_a_kernel_that_comes_back_is_asked_again(
    told: list[dict[str, Any]], kernel: Kernel, bus: LocalBus
) -> None:
    await bus.peers["memory"].start()
    assert len(told) == 1, "nothing had changed"
    kernel.values["core.memory.conversation_log"] = False
    await bus.peers["memory"].start()
    assert told[-1] == {"core.memory.conversation_log": False}


async def test_one_that_does_not_answer_leaves_them_as_they_are(told: list[dict[str, Any]], kernel: Kernel) -> None:
    kernel.error = Unavailable("restarting")
    await kernel.peer.publish("config.changed", {"keys": ["core.memory.conversation_log"]})
    assert len(told) == 1
