"""Requests are answered by whichever source can: the whole service, real adapter workers, a scripted far end."""

import asyncio
import json
import re

import pytest

from homeagent_sdk.errors import Denied, Invalid, NotFound, Unavailable
from provider_service.upstream import Limits
from tests.fakes.openai_server import (
    Reply,
    context_full,
    disconnect,
    disconnect_midway,
    error,
    garbage,
    slow,
    text,
    tool_call,
    tool_calls,
)
from tests.provider_service.conftest import QUICK, running


def at(server, **values):
    return {"base_url": server.url, "model": "m", **values}


def words(items):
    return "".join(item["text"] for item in items if item["type"] == "delta")


@pytest.fixture
async def one(stage, fake):
    """A service with one source, ``a``."""
    await stage.configure(a=at(fake))
    return stage


@pytest.fixture
async def two(stage, fake, second):
    """A service with the sources ``a`` (first) and ``b``."""
    await stage.configure(a=at(fake), b=at(second, model="n"))
    return stage


async def outcomes(stage):
    usage = await stage.kernel.call("provider.usage", {"since": 0})
    return [(row["source"], row["outcome"]) for row in reversed(usage["rows"])]


# Answers --------------------------------------------------------------------------------------------------------------


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


# Fallback -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        error(500),
        error(503, retry_after=5),
        error(429, retry_after=5),
        error(401, "invalid_api_key"),
        error(403, "model_not_allowed"),
        error(404, "model_not_found"),
        error(400, "bad_parameter"),
        garbage(),
        disconnect(),
        slow(2),
        Reply(raw=""),
        Reply(raw='data: {"error":{"message":"overloaded","code":503}}\n\n'),
        Reply(raw="data: no json\n\n"),
        Reply(tool_calls=[{"name": "t", "arguments": {"a": "b" * 200}}], disconnect_after=3),
        Reply(status=302, raw="", headers={"Location": "http://elsewhere.example/"}),
        Reply(text="x" * 300_000),
    ],
    ids=lambda reply: f"{reply.status} {(reply.raw or '')[:20]} {reply.disconnect_after} {reply.delay_s}",
)
async def test_a_source_that_fails_before_its_first_text_is_followed_by_the_next_unseen(two, fake, second, failure):
    fake.push(failure)
    second.push(text("from the second"))
    items = await two.chat()
    if failure.text.startswith("xxx"):
        assert items[-1]["partial"], "it had begun before it became too large"
        return
    assert [item["type"] for item in items] == ["start", "delta", "done"]
    assert items[0]["source"] == "b"
    assert items[-1]["message"]["content"] == "from the second"
    assert [source for source, _ in await outcomes(two)] == ["a", "b"]


async def test_a_source_that_breaks_after_its_first_text_keeps_what_came(two, fake, second):
    fake.push(disconnect_midway("the first half, the second half", after=2, pieces=4))
    items = await two.chat()
    assert "the first half".startswith(words(items)[:10])
    done = items[-1]
    assert done["message"]["content"] == words(items)
    assert (done["partial"], done["finish_reason"], done["message"]["tool_calls"]) == (True, "error", [])
    assert second.chats == []
    assert await outcomes(two) == [("a", "partial")]
    assert (await two.state_of("a"))["state"] == "cooling"


async def test_an_error_in_the_middle_of_a_stream_keeps_what_came(two, fake):
    fake.push(
        Reply(
            raw='data: {"choices":[{"delta":{"content":"half"}}]}\n\ndata: {"error":{"message":"gone","code":500}}\n\n'
        )
    )
    # Both events come in one piece of the network, so that nothing has been shown yet, or one by one.
    done = await two.done("hi")
    assert done["partial"] is (done["source"] == "a")


async def test_a_source_that_breaks_while_it_reasons_is_followed_by_the_next(two, fake, second):
    fake.push(Reply(reasoning="a long thought " * 10, text="never", disconnect_after=3, chunk_delay_s=0.01))
    second.push(text("the answer"))
    items = await two.chat()
    assert [item["source"] for item in items if item["type"] == "start"] == ["a", "b"]
    assert items[-1]["message"]["reasoning"] == ""
    assert items[-1]["message"]["content"] == "the answer"


async def test_a_named_model_goes_first(two, second):
    done = await two.done(model="n")
    assert done["source"] == "b"


async def test_an_unknown_model_is_not_found(two):
    with pytest.raises(NotFound) as caught:
        await two.chat(model="gpt-9")
    assert caught.value.field == "model"


async def test_a_refused_key_is_bad_until_it_changes(one, fake):
    fake.api_key = "sk-right-key"
    await one.operator.call("provider.set_key", {"source": "a", "key": "sk-wrong-key"})
    with pytest.raises(Denied) as caught:
        await one.chat()
    assert caught.value.hint
    assert (await one.state_of("a"))["state"] == "bad_key"
    with pytest.raises(Denied):
        await one.chat()
    assert len(fake.chats) == 1, "a bad key is not tried again"
    await one.operator.call("provider.set_key", {"source": "a", "key": "sk-right-key"})
    assert (await one.done())["message"]["content"] == "hello"


async def test_a_refused_model_leaves_the_key_good(stage, fake):
    await stage.configure(a=at(fake, model="forbidden"), b=at(fake, model="allowed"))
    fake.script = lambda request: error(403, "no") if request.body["model"] == "forbidden" else None
    assert (await stage.done())["source"] == "b"
    assert (await stage.state_of("a"))["state"] == "stopped"
    assert (await stage.state_of("b"))["state"] == "ready"


async def test_a_source_that_asked_to_wait_is_left_alone(one, fake):
    fake.push(error(429, retry_after=20))
    for _ in range(3):
        with pytest.raises(Unavailable) as caught:
            await one.chat()
    assert 15 < caught.value.detail["retry_after_s"] <= 20
    assert len(fake.chats) == 1


async def test_an_only_source_is_tried_again_after_a_moment(one, fake, monkeypatch):
    fake.push(error(500))
    with pytest.raises(Unavailable):
        await one.chat()
    with pytest.raises(Unavailable):
        await one.chat()
    assert len(fake.chats) == 1
    monkeypatch.setattr("provider_service.source_health.PROBE_EVERY_S", 0.0)
    assert (await one.done())["source"] == "a"
    assert (await one.state_of("a"))["state"] == "ready"


async def test_all_failing_tells_each_reason(two, fake, second):
    fake.push(error(500, message="the disk is full"))
    second.push(error(503))
    with pytest.raises(Unavailable) as caught:
        await two.chat()
    assert "a: HTTP 500: the disk is full" in caught.value.message
    assert "b: HTTP 503" in caught.value.message
    assert set(caught.value.detail["sources"]) == {"a", "b"}
    assert caught.value.hint


async def test_no_source_at_all_tells_what_to_do(stage):
    with pytest.raises(Unavailable) as caught:
        await stage.chat()
    assert caught.value.detail["reason"] == "no_source"
    assert "homeagent source add" in (caught.value.hint or "")


async def test_a_server_that_is_not_there_is_named(stage):
    await stage.configure(a={"base_url": "http://127.0.0.1:9", "model": "m"})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        await stage.chat()


async def test_a_full_context_is_typed_and_blames_nobody(two, fake, second):
    fake.push(context_full())
    with pytest.raises(Invalid) as caught:
        await two.chat()
    assert caught.value.detail["context_full"] is True
    assert second.chats == [], "the other window is no larger"
    assert (await two.state_of("a"))["state"] == "ready"


async def test_a_full_context_goes_on_to_a_larger_one(stage, fake, second):
    await stage.configure(a=at(fake, context_window=1000, priority=1), b=at(second, context_window=9000))
    fake.push(context_full())
    assert (await stage.done())["source"] == "b"


async def test_a_request_that_all_refuse_is_invalid_and_rests_nobody(two, fake, second):
    for server in (fake, second):
        server.push(error(400, "invalid_tool", "tools[0] is wrong"))
    with pytest.raises(Invalid, match="tools"):
        await two.chat()
    assert [(await two.state_of(name))["state"] for name in "ab"] == ["ready", "ready"]


async def test_a_broken_adapter_costs_its_source_that_call_only(two, fake, second):
    await two.configure(a=at(fake, adapter="mine"), b=at(second))
    script = two.folder / "adapters" / "mine.lua"
    script.write_text("return { transform_request = function() error('oh') end }")
    assert (await two.done())["source"] == "b"
    script.write_text("return {}")
    assert (await two.done())["source"] == "a"


@pytest.mark.parametrize(
    "endpoint", ["https://evil.example/", "@evil.example/v1", "x", "/a b", "/a\\n", "\\\\evil", "/\\tx", ""]
)
async def test_an_adapter_cannot_send_the_key_to_another_host(one, fake, endpoint):
    await one.configure(a=at(fake, adapter="mine"))
    script = f"return {{ endpoint = '{endpoint}' }}".replace("\\\\", "\\\\\\\\")
    (one.folder / "adapters" / "mine.lua").write_text(script)
    with pytest.raises(Unavailable):
        await one.chat()
    assert fake.requests == []


@pytest.mark.parametrize(
    "header", ["['X\\r\\nY'] = 'a'", "X = 'a\\r\\nB: c'", "Host = 'evil'", "['Content-Length'] = '1'"]
)
async def test_an_adapter_cannot_smuggle_headers(one, fake, header):
    await one.configure(a=at(fake, adapter="mine"))
    (one.folder / "adapters" / "mine.lua").write_text(f"return {{ headers = {{ {header} }} }}")
    with pytest.raises(Unavailable):
        await one.chat()
    assert fake.requests == []


async def test_a_connection_that_died_while_it_idled_is_replaced_unseen(stage):
    connections = 0

    async def handle(reader, writer):
        nonlocal connections
        connections += 1
        for answered in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
            if answered:
                break
            body = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await stage.configure(a={"base_url": f"http://127.0.0.1:{port}", "model": "m"})
        answers = [(await stage.done())["message"]["content"] for _ in range(2)]
        await stage.service.upstream.close()
    assert answers == ["yes", "yes"]
    assert connections == 2
    assert await outcomes(stage) == [("a", "ok"), ("a", "ok")]


# Limits ---------------------------------------------------------------------------------------------------------------


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


# Bad requests ---------------------------------------------------------------------------------------------------------


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


# Keys -----------------------------------------------------------------------------------------------------------------


async def test_the_key_goes_to_its_source_and_nowhere_else(tmp_path, fake, second):
    key = "zq9-Very_Secret.key"
    environ = {"HOMEAGENT_LLM_BASE_URL": fake.url, "HOMEAGENT_LLM_MODEL": "m"}
    fake.script = lambda request: error(500, message=f"bad luck with {request.headers.get('Authorization')}")
    second.script = fake.script
    async with running(tmp_path / "provider", environ, key, limits=QUICK) as stage:
        await stage.configure(b=at(second))
        await stage.operator.call("provider.set_key", {"source": "b", "key": key + "2"})
        with pytest.raises(Unavailable) as caught:
            await stage.chat()
        listing = await stage.kernel.call("provider.sources", {})
        health = await stage.kernel.call("provider.health", {})
        usage = await stage.kernel.call("provider.usage", {"since": 0})
    assert fake.chats[0].headers["Authorization"] == f"Bearer {key}"
    assert second.chats[0].headers["Authorization"] == f"Bearer {key}2"
    told = json.dumps([caught.value.to_wire(), listing, health, usage, [event.payload for event in stage.bus.events]])
    assert key not in told
    assert [source["key_set"] for source in listing["sources"]] == [True, True]
    files = [
        path for path in (tmp_path / "provider").rglob("*") if path.is_file() and key.encode() in path.read_bytes()
    ]
    assert [str(path.relative_to(tmp_path / "provider")) for path in files] == ["keys/b"]


async def test_an_adapter_names_the_header_for_the_key_and_never_sees_it(one, fake):
    await one.configure(a=at(fake, adapter="mine"))
    await one.operator.call("provider.set_key", {"source": "a", "key": "sk-secret-key"})
    script = """return { build_headers = function(meta)
        local seen = json.encode(meta)
        return { ["X-Api-Key"] = "{api_key}", ["X-Seen"] = seen }
    end }"""
    (one.folder / "adapters" / "mine.lua").write_text(script)
    await one.chat()
    headers = fake.chats[0].headers
    assert headers["X-Api-Key"] == "sk-secret-key"
    assert "sk-secret-key" not in headers["X-Seen"]
    assert "Authorization" not in headers


async def test_redirects_are_not_followed(one, fake, second):
    fake.push(Reply(status=307, raw="", headers={"Location": f"{second.url}/chat/completions"}))
    with pytest.raises(Unavailable, match="redirects"):
        await one.chat()
    assert second.requests == []


# Configuration --------------------------------------------------------------------------------------------------------


async def test_the_source_of_the_environment_goes_first(tmp_path, fake, second):
    environ = {"HOMEAGENT_LLM_BASE_URL": fake.url, "HOMEAGENT_LLM_MODEL": "m", "HOMEAGENT_LLM_CONTEXT_WINDOW": "9000"}
    async with running(tmp_path / "provider", environ, "sk-env-key", limits=QUICK) as stage:
        await stage.configure(z=at(second, priority=100))
        listing = (await stage.kernel.call("provider.sources", {}))["sources"]
        assert [(source["name"], source["context_window"]) for source in listing] == [("env", 9000), ("z", 32768)]
        assert (await stage.done())["source"] == "env"


async def test_a_change_of_the_configuration_takes_effect_at_once(one, fake, second):
    assert (await one.done())["model"] == "m"
    await one.configure(a=at(second, model="other"))
    assert (await one.done())["model"] == "other"
    await one.configure()
    with pytest.raises(Unavailable):
        await one.chat()


async def test_a_source_that_makes_no_sense_is_listed_with_the_reason(one, fake):
    await one.configure(a=at(fake), b={"base_url": "nonsense", "model": "m"})
    state = await one.state_of("b")
    assert state["state"] == "stopped"
    assert "base_url" in state["reason"]


async def test_usage_is_recorded_per_call(one, fake):
    await one.chat("hi")
    usage = await one.kernel.call("provider.usage", {"since": 0})
    (row,) = usage["rows"]
    assert (row["reason"], row["turn_id"], row["lane"], row["source"]) == ("turn", "t1", "cli/main", "a")
    assert row["prompt_tokens"] > 0
    assert row["ms"] >= row["first_piece_ms"] > 0
    assert usage["totals"]["total_tokens"] == row["total_tokens"]


async def test_health_counts_sources_by_state(two, fake):
    fake.push(error(500))
    await two.chat()
    health = await two.kernel.call("provider.health", {})
    assert health["state"] == "running"
    assert health["sources"] == {"cooling": 1, "ready": 1}


async def test_a_tool_is_called_by_the_default_far_end(one, fake):
    tools = [{"name": "echo", "description": "", "parameters": {"type": "object"}}]
    done = await one.done('please call tool echo {"text": "x"}', tools=tools)
    call = done["message"]["tool_calls"][0]
    history = [
        {"role": "user", "content": "call tool echo"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "x"},
    ]
    assert "x" in (await one.done(history, tools=tools))["message"]["content"]
    assert fake.chats[1].messages[1]["tool_calls"][0]["function"]["name"] == "echo"


async def test_one_call_answers_scripted_tools(one, fake):
    fake.push(tool_call("t", {"deep": {"list": [], "null": None, "big": 2**63}}))
    arguments = (await one.done())["message"]["tool_calls"][0]["arguments"]
    assert json.loads(arguments) == {"deep": {"list": [], "null": None, "big": 2**63}}
