"""One source answers: the whole service, real adapter workers, a scripted far end."""

import asyncio
import json

import pytest

from homeagent_sdk.errors import Denied, Invalid
from provider_service.upstream import Limits
from tests.fakes.openai_server import Reply, text, tool_calls
from tests.provider_service.conftest import at, outcomes, running, words


async def test_a_plain_answer_streams(one, fake):
    fake.push(text("hello from afar, in several pieces"))
    items = await one.chat("hi")
    assert items[0] == {"type": "start", "source": "a", "model": "m"}
    assert words(items) == "hello from afar, in several pieces"
    done = items[-1]
    assert done["message"]["content"] == "hello from afar, in several pieces"
    assert (done["finish_reason"], done["partial"], done["source"], done["model"]) == ("stop", False, "a", "m")
    assert done["usage"]["reported"]
    assert fake.chats[0].body["stream_options"] == {"include_usage": True}


async def test_text_arrives_while_it_is_written(one, fake):
    fake.push(Reply(text="abcd", pieces=4, chunk_delay_s=0.02))
    deltas = [item["text"] for item in await one.chat() if item["type"] == "delta"]
    assert len(deltas) >= 2
    assert "".join(deltas) == "abcd"


async def test_tool_calls_come_whole_with_the_end(one, fake):
    fake.push(tool_calls(("look", {"q": "天气"}), ("sum", {"n": [1, 2]}), text="let me see"))
    items = await one.chat(tools=[{"name": "look", "description": "", "parameters": {"type": "object"}}])
    assert [item["type"] for item in items] == ["start", "delta", "done"]
    calls = items[-1]["message"]["tool_calls"]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("look", {"q": "天气"}),
        ("sum", {"n": [1, 2]}),
    ]
    assert items[-1]["finish_reason"] == "tool_calls"
    assert fake.chats[0].tool_names == ["look"]


async def test_reasoning_is_told_apart(one, fake):
    fake.push(Reply(reasoning="hm, let me think", text="42"))
    items = await one.chat()
    assert [item["type"] for item in items] == ["start", "reasoning", "delta", "done"]
    assert items[-1]["message"]["reasoning"] == "hm, let me think"


async def test_a_document_in_answer_to_a_stream_is_read(one, fake):
    body = {"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    fake.push(Reply(raw=json.dumps(body)))
    done = await one.done()
    assert (done["message"]["content"], done["usage"]["prompt_tokens"], done["partial"]) == ("whole", 3, False)


async def test_a_stream_without_its_end_marker_is_complete_if_it_finished(one, fake):
    fake.push(Reply(text="all of it", done_marker=False))
    assert (await one.done())["partial"] is False


async def test_a_stream_that_just_stops_is_partial(one, fake):
    fake.push(Reply(raw='data: {"choices":[{"delta":{"content":"half of"}}]}\n\n'))
    done = await one.done()
    assert (done["message"]["content"], done["partial"], done["finish_reason"]) == ("half of", True, "error")


async def test_a_server_that_never_closes_after_the_end_is_not_waited_for(one, fake):
    fake.push(Reply(text="a", chunk_delay_s=0.01, usage={}, done_marker=False, linger_s=30))
    async with asyncio.timeout(5):
        done = await one.done()
    assert done["partial"] is False
    assert done["usage"]["reported"] is False


async def test_the_request_is_the_models_own(stage, fake):
    await stage.configure(a=at(fake, model="special", thinking_enabled=False))
    await stage.chat(
        [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], temperature=0, max_tokens=9
    )
    body = fake.chats[0].body
    assert body["model"] == "special"
    assert body["messages"] == [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert (body["temperature"], body["max_tokens"]) == (0, 9)


async def test_opaque_fields_go_back_to_the_adapter_that_made_them(two, fake, second):
    fake.push(
        Reply(
            raw='data: {"choices":[{"delta":{"content":"x","reasoning_details":[{"s":"=="}]},'
            '"finish_reason":"stop"}]}\n\n'
        )
    )
    opaque = (await two.done())["message"]["opaque"]
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "opaque": opaque}]
    await two.chat([*history, {"role": "user", "content": "b"}])
    assert fake.chats[1].messages[1]["reasoning_details"] == [{"s": "=="}]
    await two.chat(
        [*history[:1], {**history[1], "opaque": {**opaque, "adapter": "other"}}, {"role": "user", "content": "b"}]
    )
    assert "reasoning_details" not in fake.chats[2].messages[1]


async def test_images_are_left_out_for_a_model_that_cannot_see(two, fake, second):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    message = [{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}]
    await two.chat(message)
    assert "cannot see" in json.dumps(fake.chats[0].messages)
    await two.configure(a=at(fake), b=at(second, model="n", vision=True))
    await two.chat(message)
    assert second.chats[0].messages[0]["content"][1] == picture


async def test_a_model_without_tools_gets_none(stage, fake):
    await stage.configure(a=at(fake, tools=False))
    call = {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "result"},
    ]
    await stage.chat(history, tools=[{"name": "t"}])
    body = fake.chats[0].body
    assert "tools" not in body
    assert body["messages"][1:] == [{"role": "assistant", "content": ""}, {"role": "user", "content": "result"}]


async def test_a_stream_that_falls_silent_is_ended(two, fake):
    fake.push(Reply(text="abcdefgh", pieces=8, chunk_delay_s=0.2, stall_after=3))
    done = await two.done()
    assert done["partial"]
    assert "abcdefgh".startswith(done["message"]["content"])


async def test_the_whole_call_has_a_limit(tmp_path, fake):
    limits = Limits(total_s=0.6, idle_s=5, first_byte_s=5)
    async with running(tmp_path / "p", {}, None, limits=limits) as stage:
        await stage.configure(a=at(fake))
        fake.push(Reply(text="a" * 100, pieces=100, chunk_delay_s=0.1))
        async with asyncio.timeout(5):
            assert (await stage.done())["partial"]


async def test_the_slots_of_a_source_are_kept(stage, fake):
    await stage.configure(a=at(fake, max_concurrent=2))
    fake.chunk_delay_s = 0.02
    seen = []

    def watch(request):
        seen.append(fake.open_streams)

    fake.script = watch
    await asyncio.gather(*(stage.chat(f"question {n}") for n in range(8)))
    assert len(fake.chats) == 8
    assert max(seen) <= 1, "never more than one other at the same time"


async def test_closing_the_stream_ends_the_call(one, fake):
    fake.push(Reply(text="abcdefghij" * 10, pieces=100, chunk_delay_s=0.02))
    body = {"request": {"messages": [{"role": "user", "content": "x"}]}, "reason": "turn"}
    async with one.kernel.stream("provider.chat", body) as stream:
        async for item in stream:
            if item["type"] == "delta":
                break
    async with asyncio.timeout(2):
        while fake.open_streams:  # noqa: ASYNC110, the far end notices in its own time
            await asyncio.sleep(0.01)
    assert await outcomes(one) == [("a", "cancelled")]
    assert (await one.state_of("a"))["state"] == "ready"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (None, "request"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": 7}]}, "messages[1]"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{"description": "x"}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": "warm"}, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "model": 7}, "model"),
    ],
)
async def test_a_malformed_request_names_the_field(one, fake, request_, field):
    with pytest.raises(Invalid) as caught:
        async with one.kernel.stream("provider.chat", {"request": request_}) as stream:
            async for _ in stream:
                pass
    assert caught.value.field == field
    assert fake.requests == []


async def test_only_the_operator_sets_keys(one):
    with pytest.raises(Denied):
        await one.kernel.call("provider.set_key", {"source": "a", "key": "sk-x"})
    for body in (None, {}, {"source": 7}, {"source": "a", "key": 7}, {"source": "../x", "key": "k"}):
        with pytest.raises(Invalid):
            await one.operator.call("provider.set_key", body)


async def test_usage_since_must_be_a_time(one):
    for since in ("x", float("nan")):
        with pytest.raises(Invalid):
            await one.kernel.call("provider.usage", {"since": since})
