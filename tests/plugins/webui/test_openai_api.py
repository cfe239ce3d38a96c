from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Overloaded, Unavailable
from homeagent_sdk.testing import FakeKernel, outcome
from tests.plugins.live_kernel import LiveKernel
from tests.plugins.webui.conftest import Web, running


def chunks_of(text: str) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


async def test_a_message_is_answered_with_usage(web: Web) -> None:
    web.kernel.script = lambda s: [
        outcome("hello", usage={"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "cached_tokens": 4})
    ]
    answer = await web.answer(say="hi")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "homeagent"
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


async def test_only_the_last_user_message_is_put_to_the_agent(web: Web) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "second"}, {"type": "text", "text": "line"}]},
    ]
    await web.answer(messages=messages)
    (submission,) = web.kernel.submissions
    assert submission["text"] == "second\nline"
    assert (submission["channel"], submission["principal"]) == ("api", "owner")


async def test_a_stream_brings_the_text_as_it_comes_and_ends_with_usage(live: Web) -> None:
    async with live.stream(first="Hel", say="hi", stream_options={"include_usage": True}) as (response, feed):
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        first = await response.content.readuntil(b"\n\n")
        second = await response.content.readuntil(b"\n\n")
        assert b'"role":"assistant"' in first
        assert b'"content":"Hel"' in second
        await feed.say("lo")
        await feed.end("Hello")
        rest = await response.text()
    chunks = chunks_of((first + second).decode() + rest)
    assert text_of(chunks) == "Hello"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_usage_is_not_streamed_unless_asked_for(web: Web) -> None:
    async with web.chat(say="hi", stream=True) as response:
        chunks = chunks_of(await response.text())
    assert text_of(chunks) == "hi"
    assert not any("usage" in chunk for chunk in chunks)


async def test_text_that_starts_again_is_continued_where_it_is_the_same(live: Web) -> None:
    async with live.stream(first="The answer is", say="hi") as (response, feed):
        await response.content.readuntil(b"The answer is")
        await feed.cut_off(
            {"type": "started"}, {"type": "delta", "text": "The answer is 42"}, outcome("The answer is 42")
        )
        rest = await response.text()
    assert '"content":" 42"' in rest
    assert "interrupted" not in rest


async def test_text_that_starts_again_otherwise_is_marked_and_sent_in_full(live: Web) -> None:
    async with live.stream(first="Maybe", say="hi", headers={"Accept-Language": "zh-CN"}) as (response, feed):
        first = await response.content.readuntil(b"Maybe")
        await feed.cut_off({"type": "delta", "text": "No"}, {"type": "delta", "text": ", never"}, outcome("No, never"))
        text = text_of(chunks_of(first.decode() + await response.text()))
    assert text == "Maybe\n\n*（回答中断过，以下是完整的回答。）*\n\nNo, never"


async def test_a_client_that_hangs_up_does_not_end_the_turn(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    async with live.stream(first="part", say="hi") as (response, feed):
        await response.content.readuntil(b"part")
    await feed.say("more" * 1000)
    await feed.end("part" + "more" * 1000)
    assert live.kernel.stops == []
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "part"},
        {"role": "user", "content": "go on"},
    ]
    async with live.stream(turn="t2", first="yes", messages=history):
        pass
    first, second = live.kernel.submissions
    assert first["conversation"] == second["conversation"]


async def test_a_silent_stream_is_kept_alive(live: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(live.kernel, LiveKernel)
    monkeypatch.setattr("plugins.webui.openai_api.KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr("plugins.webui.openai_api._HEADERS_AFTER_S", 0.05)
    async with live.chat(say="hi", stream=True) as response:
        assert await response.content.readuntil(b": keep-alive\n\n")
        assert await response.content.readuntil(b": keep-alive\n\n")
        await (await live.kernel.feed()).end("late")
        assert '"content":"late"' in await response.text()


async def test_a_failed_turn_has_a_status_and_must_not_be_repeated(web: Web) -> None:
    error = {"code": "unavailable", "message": "all sources failed", "hint": "check the address"}
    web.kernel.script = lambda s: [{"type": "started"}, outcome("", "error", error=error)]
    for stream in (False, True):
        async with web.chat(say="hi", stream=stream) as response:
            assert response.status == 503
            assert response.headers["x-should-retry"] == "false"
            found = (await response.json())["error"]
        assert found["message"] == "all sources failed (check the address)"
        assert (found["type"], found["code"], found["param"]) == ("server_error", "unavailable", None)


async def test_a_failure_after_the_first_text_ends_the_stream_with_an_error(web: Web) -> None:
    error = {"code": "internal", "message": "it broke"}
    web.kernel.script = lambda s: [{"type": "delta", "text": "well"}, outcome("", "error", error=error)]
    async with web.chat(say="hi", stream=True) as response:
        assert response.status == 200
        chunks = chunks_of(await response.text())
    assert text_of(chunks[:-1]) == "well"
    assert chunks[-1]["error"]["message"] == "it broke"


async def test_a_stopped_turn_gives_what_was_said(web: Web) -> None:
    web.kernel.script = lambda s: [outcome("so far", "stopped")]
    answer = await web.answer(say="hi")
    assert answer["choices"][0]["message"]["content"] == "so far"
    assert answer["homeagent"]["outcome"] == "stopped"


async def test_a_turn_that_was_skipped_is_an_error(web: Web) -> None:
    web.kernel.script = lambda s: [outcome("", "skipped")]
    async with web.chat(say="hi") as response:
        assert response.status == 503
        assert "skipped" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("the queue is full"), 429, "rate_limit_error"),
        (Unavailable("the journal cannot be written", hint="free some space"), 503, "server_error"),
    ],
)
async def test_a_refusal_of_the_kernel_becomes_a_status(web: Web, error: Any, status: int, kind: str) -> None:
    web.kernel.submit_errors.append(error)
    async with web.chat(say="hi") as response:
        assert response.status == status
        assert response.headers["Retry-After"] == "1"
        assert (await response.json())["error"]["type"] == kind


async def test_models_are_listed_with_the_agents_own_name_first(web: Web) -> None:
    web.kernel.models = ["big", "small", "big"]
    headers = {"Authorization": "Bearer ha-owner"}
    async with web.client.get(f"{web.url}/v1/models", headers=headers) as response:
        listed = await response.json()
    assert [entry["id"] for entry in listed["data"]] == ["homeagent", "big", "small"]
    async with web.client.get(f"{web.url}/v1/models/big", headers=headers) as response:
        assert (await response.json())["id"] == "big"
    async with web.client.get(f"{web.url}/v1/models/none", headers=headers) as response:
        assert response.status == 404


@pytest.mark.parametrize(("asked", "given"), [("fake", "fake"), ("homeagent", None), ("auto", None), (None, None)])
async def test_a_model_is_chosen_by_name(web: Web, asked: str | None, given: str | None) -> None:
    await web.answer(say="hi", model=asked)
    assert web.kernel.submissions[0]["model"] == given


async def test_an_unknown_model_is_not_found(web: Web) -> None:
    async with web.chat(say="hi", model="gpt-17") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "invalid_request_error")
    assert "fake" in error["message"]
    assert web.kernel.submissions == []


async def test_a_model_that_was_just_configured_is_found(web: Web) -> None:
    await web.answer(say="hi", model="fake")
    web.kernel.models.append("new")
    await web.kernel.peer.publish("config.changed", {"keys": ["core.llm.sources.new.model"]})
    await web.answer(say="hi", model="new")


async def test_no_memory_is_passed_on(web: Web) -> None:
    for value in (True, "true", False, None):
        await web.answer(say="hi", metadata={"no_memory": value})
    assert [s["no_memory"] for s in web.kernel.submissions] == [True, True, False, False]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"stream": "perhaps"}, "stream"),
        ({"metadata": []}, "metadata"),
        ({"user": ""}, "user"),
        ({"user": "x" * 129}, "user"),
        ({"metadata": {"conversation": "a\nb"}}, "metadata.conversation"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_with_the_field(web: Web, change: dict[str, Any], param: str) -> None:
    async with web.chat(**{"messages": [{"role": "user", "content": "hi"}], **change}) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert web.kernel.submissions == []


async def test_what_the_agent_decides_itself_is_ignored(web: Web) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    await web.answer(say="hi", n=1, temperature=3, tools=tools, tool_choice="auto", max_tokens=5, logprobs=True)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff", b"[" * 100_000])
async def test_malformed_json_is_refused(web: Web, body: bytes) -> None:
    headers = {"Authorization": "Bearer ha-owner", "Content-Type": "application/json"}
    async with web.client.post(f"{web.url}/v1/chat/completions", data=body, headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_body_over_the_limit_is_refused_and_the_limit_stated(web: Web) -> None:
    async with web.chat(say="x" * (10 * 1024 * 1024)) as response:
        assert response.status == 413
        assert "10 MiB" in (await response.json())["error"]["message"]


async def test_a_body_over_the_limit_without_length_is_refused(web: Web) -> None:
    async def pieces() -> Any:
        for _ in range(11):
            yield b" " * (1024 * 1024)

    headers = {"Authorization": "Bearer ha-owner"}
    async with web.client.post(f"{web.url}/v1/chat/completions", data=pieces(), headers=headers) as response:
        assert response.status == 413


async def test_a_large_body_below_the_limit_is_taken(web: Web) -> None:
    answer = await web.answer(say="x" * 9_000_000)
    assert len(answer["choices"][0]["message"]["content"]) == 9_000_000


async def test_the_same_idempotency_key_gives_the_same_answer(web: Web) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = await web.answer(say="hi", headers=headers)
    again = await web.answer(say="hi", headers=headers)
    assert first["id"] == again["id"]
    assert first["homeagent"] == again["homeagent"]
    assert len(web.kernel.submissions) == 1


async def test_another_body_under_the_same_key_is_refused(web: Web) -> None:
    headers = {"Idempotency-Key": "k1"}
    await web.answer(say="hi", headers=headers)
    async with web.chat(say="bye", headers=headers) as response:
        assert response.status == 422
        assert (await response.json())["error"]["code"] == "idempotency_key_reused"
    await web.answer(key="ha-member", say="bye", headers=headers)


async def test_two_requests_at_once_with_one_key_are_one_turn(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    headers = {"Idempotency-Key": "k1"}
    both = [asyncio.create_task(live.answer(say="hi", headers=headers)) for _ in range(2)]
    await (await live.kernel.feed()).end("once")
    first, second = await asyncio.gather(*both)
    assert first["id"] == second["id"]


async def test_idempotency_outlives_a_restart_of_the_plugin(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async for web in running(kernel, tmp_path / "webui"):
        first = await web.answer(say="hi", headers={"Idempotency-Key": "k1"})
    async for web in running(kernel, tmp_path / "webui"):
        again = await web.answer(say="hi", headers={"Idempotency-Key": "k1"})
        async with web.chat(say="ho", headers={"Idempotency-Key": "k1"}) as response:
            assert response.status == 422
    assert first["id"] == again["id"]


async def test_without_a_key_two_equal_requests_are_two_turns(web: Web) -> None:
    await web.answer(say="hi")
    await web.answer(say="hi")
    assert len({s["delivery_id"] for s in web.kernel.submissions}) == 2


async def test_the_official_client_understands_answers_streams_and_errors(web: Web) -> None:
    import openai

    web.kernel.script = lambda s: [{"type": "delta", "text": "he"}, {"type": "delta", "text": "llo"}, outcome("hello")]
    async with openai.AsyncOpenAI(base_url=f"{web.url}/v1", api_key="ha-owner", max_retries=0) as client:
        plain = await client.chat.completions.create(model="homeagent", messages=[{"role": "user", "content": "hi"}])
        assert plain.choices[0].message.content == "hello"
        assert plain.usage is not None
        stream = await client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert [part for part in parts if part] == ["he", "llo"]
        assert [model.id async for model in client.models.list()] == ["homeagent", "fake"]
        with pytest.raises(openai.NotFoundError, match="gpt-17"):
            await client.chat.completions.create(model="gpt-17", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="ha-nobody").models.list()
