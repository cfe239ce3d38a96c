from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.bus.abc import Event
from homeagent_sdk.errors import Cancelled, Denied, Invalid, NotFound, Overloaded, TimedOut, Unavailable
from homeagent_sdk.plugin import OutputMessage, Plugin, Receipt, StageCall, ToolContext
from homeagent_sdk.plugin.calls import Threads
from homeagent_sdk.plugin.manifest import Manifest, parse_manifest
from homeagent_sdk.plugin.runtime import StartFailed
from homeagent_sdk.testing import FakeKernel, answers, outcome


def manifest(**more: Any) -> Manifest:
    base = {"name": "sample", "version": "1", "kind": "python", "entry": "main.py", "description": {"en": "x"}}
    return parse_manifest({**base, **more})


GREETING = {"key": "greeting", "type": "string", "default": "hi", "description": {"en": "what to say"}}


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@dataclass
class Weather:
    city: str
    degrees: float


def tools() -> Plugin:
    plugin = Plugin()

    @plugin.tool(parallel_safe=True, timeout_s=7)
    async def repeat(text: str, context: ToolContext, times: int = 1) -> str:
        """Repeat a text."""
        return f"{context.conversation}/{context.principal}: " + text * times

    @plugin.tool()
    def slow_weather(city: str) -> Weather:
        """Tell the weather, in a thread."""
        time.sleep(0.01)
        return Weather(city, 21.5)

    @plugin.tool()
    async def bad_result() -> Any:
        """Return what cannot be carried."""
        return {"list": [1, Path("/")]}

    @plugin.tool()
    async def crash() -> None:
        """Crash."""
        raise ZeroDivisionError("division by zero")

    @plugin.tool()
    async def refuse() -> None:
        """Refuse."""
        raise NotFound("there is no such file", field="path", hint="list the folder first")

    return plugin


async def test_a_tool_gets_its_arguments_and_context(kernel: FakeKernel, tmp_path: Path) -> None:
    async with kernel.run(tools(), manifest(), tmp_path):
        assert await kernel.call_tool("sample", "repeat", {"text": "ab", "times": "2"}) == {
            "content": "c1/owner: abab",
            "is_error": False,
        }
        answer = await kernel.call_tool("sample", "slow_weather", {"city": "Bern"})
        assert answer["content"] == {"city": "Bern", "degrees": 21.5}


@pytest.mark.parametrize(
    ("tool", "arguments", "field", "reason"),
    [
        ("repeat", {}, "text", "required"),
        ("repeat", {"text": "a", "times": "many"}, "times", "type"),
        ("refuse", {}, "path", "not_found"),
        ("bad_result", {}, "list[1]", "result"),
        ("crash", {}, None, "crashed"),
    ],
)
async def test_what_goes_wrong_in_a_tool_is_a_structured_error(
    kernel: FakeKernel, tmp_path: Path, tool: str, arguments: dict[str, Any], field: str | None, reason: str
) -> None:
    async with kernel.run(tools(), manifest(), tmp_path):
        answer = await kernel.call_tool("sample", tool, arguments)
    assert answer["is_error"]
    assert (answer["error"]["field"], answer["error"]["reason"]) == (field, reason)
    assert answer["error"]["detail"]
    assert "Traceback" not in str(answer)


async def test_a_tool_that_does_not_exist_is_not_found(kernel: FakeKernel, tmp_path: Path) -> None:
    async with kernel.run(tools(), manifest(), tmp_path):
        with pytest.raises(NotFound):
            await kernel.call_tool("sample", "nothing")


async def test_only_the_kernel_may_call_a_plugin(kernel: FakeKernel, tmp_path: Path) -> None:
    async with kernel.run(tools(), manifest(), tmp_path):
        other = kernel.bus.peer("other", tier="external")
        with pytest.raises(Denied):
            await other.call("sample.tool", {"tool": "repeat", "arguments": {"text": "x"}, "context": {}})


async def test_the_registration_tells_flags_and_schema(kernel: FakeKernel, tmp_path: Path) -> None:
    async with kernel.run(tools(), manifest(), tmp_path):
        entry = next(tool for tool in kernel.registered["sample"]["tools"] if tool["name"] == "repeat")
    assert entry["flags"]["parallel_safe"] and entry["flags"]["timeout_s"] == 7
    assert entry["parameters"]["required"] == ["text"]


async def test_settings_are_there_before_on_start_and_change_live(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin, seen = Plugin(), []

    @plugin.on_start
    async def start() -> None:
        seen.append(plugin.settings["greeting"])

    async with kernel.run(plugin, manifest(settings=[GREETING]), tmp_path / "data"):
        await kernel.set_setting("sample", "greeting", "salve")
        assert seen == ["hi"]
        assert dict(plugin.settings) == {"greeting": "salve"}
        assert plugin.data_dir.is_dir() and plugin.name == "sample"


async def test_a_new_kernel_is_told_again_but_the_plugin_starts_once(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin, starts = tools(), []

    @plugin.on_start
    async def start() -> None:
        starts.append(1)

    async with kernel.run(plugin, manifest(), tmp_path):
        await kernel.restart()
        await kernel.wait_registered("sample")
    assert starts == [1]


async def test_a_kernel_that_is_not_ready_is_asked_again(kernel: FakeKernel, tmp_path: Path) -> None:
    refusals = [Unavailable("starting"), Overloaded("busy")]
    register = kernel.peer._handlers["kernel.register"]

    async def refuse_first(body: Any, call: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await register(body, call)

    kernel.peer.serve("kernel.register", refuse_first)
    async with kernel.run(tools(), manifest(), tmp_path):
        assert "sample" in kernel.registered


async def test_a_failing_start_handler_fails_the_start_and_frees_the_plugin(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()

    @plugin.on_start
    async def start() -> None:
        raise Unavailable("no network")

    for _ in range(2):
        with pytest.raises(StartFailed, match="no network"):
            async with kernel.run(plugin, manifest(), tmp_path):
                pass
    assert "sample" not in kernel.registered


async def test_a_registration_that_is_refused_later_ends_the_runtime(kernel: FakeKernel, tmp_path: Path) -> None:
    async with kernel.run(tools(), manifest(), tmp_path) as runtime:

        async def refuse(body: Any, call: Any) -> Any:
            raise Invalid("two plugins have a tool repeat")

        kernel.peer.serve("kernel.register", refuse)
        await kernel.restart()
        with pytest.raises(Invalid, match="two plugins"):
            await asyncio.wait_for(runtime.wait_failed(), 5)


async def test_stop_handlers_run_last_first_and_one_that_fails_stops_no_other(
    kernel: FakeKernel, tmp_path: Path
) -> None:
    plugin, order = Plugin(), []

    @plugin.on_stop
    async def first() -> None:
        order.append("first")

    @plugin.on_stop
    async def failing() -> None:
        order.append("failing")
        raise RuntimeError("no")

    async with kernel.run(plugin, manifest(), tmp_path):
        pass
    assert order == ["failing", "first"]


@pytest.mark.parametrize("granted", [[], ["on_input"], [{"stage": "on_input", "changes": ["response"]}]])
async def test_code_that_does_more_than_the_manifest_says_does_not_start(
    kernel: FakeKernel, tmp_path: Path, granted: list[Any]
) -> None:
    plugin = Plugin()

    @plugin.stage("on_input", changes={"raw_message"})
    async def shout(call: StageCall) -> dict[str, str]:
        return {"raw_message": call["raw_message"].upper()}

    with pytest.raises(Invalid, match="on_input"):
        async with kernel.run(plugin, manifest(stages=granted), tmp_path):
            pass


async def test_channels_and_topics_have_to_be_in_the_manifest_too(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()
    plugin.input_channel("door")
    with pytest.raises(Invalid, match="door"):
        async with kernel.run(plugin, manifest(), tmp_path):
            pass
    listening = Plugin()

    @listening.on_event("turn.started")
    async def started(event: Event) -> None: ...

    with pytest.raises(Invalid, match=r"turn\.started"):
        async with kernel.run(listening, manifest(topics=["tool.*"]), tmp_path):
            pass
    async with kernel.run(listening, manifest(topics=["turn.*"]), tmp_path):
        pass


async def test_a_stage_handler_changes_what_it_declared_and_nothing_else(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()

    @plugin.stage("on_input", changes={"raw_message", "response"})
    async def handle(call: StageCall) -> dict[str, Any] | None:
        text = call["raw_message"]
        if text == "wrong":
            return {"final_text": "x"}
        return {"raw_message": text.upper()} if text != "ping" else {"response": "pong"}

    async with kernel.run(
        plugin, manifest(stages=[{"stage": "on_input", "changes": ["raw_message", "response"]}]), tmp_path
    ):
        loud = await kernel.run_stage("sample", "on_input", {"raw_message": "hello"})
        assert loud == {"changes": {"raw_message": "HELLO"}, "response": None}
        answered = await kernel.run_stage("sample", "on_input", {"raw_message": "ping"})
        assert answered == {"changes": {}, "response": "pong"}
        with pytest.raises(Invalid, match="final_text"):
            await kernel.run_stage("sample", "on_input", {"raw_message": "wrong"})


async def test_events_reach_their_handler(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin, seen = Plugin(), []

    @plugin.on_event("turn.*")
    async def on_turn(event: Event) -> None:
        seen.append(event.topic)

    async with kernel.run(plugin, manifest(topics=["turn.*"]), tmp_path):
        await kernel.peer.publish("turn.started", {})
        await kernel.peer.publish("tool.call", {})
    assert seen == ["turn.started"]


def channel() -> tuple[Plugin, list[OutputMessage], dict[str, Any]]:
    plugin, sent, answer = Plugin(), [], {"next": Receipt("ok")}

    @plugin.output_channel("bell", redelivery="at_least_once")
    async def send(message: OutputMessage) -> Receipt | None:
        """Rings a bell."""
        sent.append(message)
        if isinstance(answer["next"], Exception):
            raise answer["next"]
        return answer["next"]

    return plugin, sent, answer


async def test_an_output_that_was_sent_is_not_sent_again(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin, sent, _ = channel()
    async with kernel.run(plugin, manifest(channels=["bell"]), tmp_path):
        for _ in range(2):
            assert await kernel.send_output("sample", "bell", "ding") == {"status": "ok", "note": ""}
        await kernel.send_output("sample", "bell", "dong", output_id="o2")
    assert [message.payload for message in sent] == ["ding", "dong"]
    assert kernel.registered["sample"]["outputs"][0]["description"] == "Rings a bell."


@pytest.mark.parametrize(
    ("returned", "status"), [(None, "unconfirmed"), ("ok", "unconfirmed"), (OSError("no"), "failed")]
)
async def test_a_receipt_never_claims_more_than_is_known(
    kernel: FakeKernel, tmp_path: Path, returned: Any, status: str
) -> None:
    plugin, sent, answer = channel()
    answer["next"] = returned
    async with kernel.run(plugin, manifest(channels=["bell"]), tmp_path):
        assert (await kernel.send_output("sample", "bell", "ding"))["status"] == status
        await kernel.send_output("sample", "bell", "ding")
    assert len(sent) == (2 if status == "failed" else 1), "only what failed may be tried again"


async def test_a_submission_is_a_turn_that_ends_with_its_outcome(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()
    async with kernel.run(plugin, manifest(), tmp_path):
        turn = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner", delivery_id="d")
        again = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner", delivery_id="d")
        assert (turn.status, again.status, again.turn_id) == ("accepted", "duplicate", turn.turn_id)
        assert [item["type"] async for item in turn.follow()] == ["started", "delta", "outcome"]
        assert (await again.result())["text"] == "hello"
        other = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner")
        assert other.status == "accepted", "without a delivery id every submission is one of its own"


@pytest.mark.parametrize("error", [Unavailable("restarting"), Cancelled("stopping"), Overloaded("busy")])
async def test_following_survives_a_restart_of_the_kernel(kernel: FakeKernel, tmp_path: Path, error: Exception) -> None:
    plugin = Plugin()
    kernel.follow_errors = [error, error]  # type: ignore[list-item]
    async with kernel.run(plugin, manifest(), tmp_path):
        turn = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner")
        types = [item["type"] async for item in turn.follow()]
    assert types == ["started", "delta", "reset"] * 2 + ["started", "delta", "outcome"]


async def test_a_stream_that_ends_without_an_outcome_is_followed_again(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin, items = Plugin(), answers("late")
    kernel.script = lambda submission: items
    last = items.pop()
    async with kernel.run(plugin, manifest(), tmp_path):
        turn = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner")
        types = []
        async for item in turn.follow():
            types.append(item["type"])
            if item["type"] == "reset":
                items.append(last)
    assert types[-2:] == ["delta", "outcome"]


async def test_following_ends_at_its_time_limit(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()
    kernel.script = lambda submission: [{"type": "started"}]
    async with kernel.run(plugin, manifest(), tmp_path):
        turn = await plugin.submit(channel="c", conversation="1", text="hello", principal="owner")
        with pytest.raises(TimedOut, match=turn.turn_id):
            await turn.result(timeout_s=0.05)
        with pytest.raises(NotFound):
            await plugin.turn("unknown").result()


async def test_authenticate_tells_whose_key_it_is(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()
    async with kernel.run(plugin, manifest(), tmp_path):
        assert (await plugin.authenticate("ha-owner")).role == "owner"
        with pytest.raises(Denied):
            await plugin.authenticate("ha-nobody")


async def test_history_and_conversations_are_those_of_the_lane(kernel: FakeKernel, tmp_path: Path) -> None:
    plugin = Plugin()
    kernel.script = lambda submission: [outcome("yes")]
    async with kernel.run(plugin, manifest(), tmp_path):
        for conversation, text in (("1", "first"), ("2", "second"), ("1", "third")):
            await plugin.submit(channel="c", conversation=conversation, text=text, principal="owner")
        body = {"channel": "c", "conversation": "1", "principal": "owner", "limit": 50}
        history = await plugin.bus.call("kernel.history", body)
        listed = await plugin.bus.call("kernel.conversations", {"channel": "c", "principal": "owner"})
    assert [turn["text"] for turn in history["turns"]] == ["first", "third"]
    assert [entry["conversation"] for entry in listed["conversations"]] == ["1", "2"]


async def test_plain_functions_that_hang_are_bounded() -> None:
    threads, release = Threads("t"), threading.Event()
    hanging = [asyncio.create_task(threads.run(release.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await threads.run(release.wait)
    release.set()
    await asyncio.gather(*hanging)
    assert await threads.run(lambda: 1) == 1
    threads.close()
