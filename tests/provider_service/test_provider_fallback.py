"""A source that fails is followed by the next, and treated as its failure deserves."""

import asyncio
import re

import pytest

from homeagent_sdk.errors import Denied, Invalid, NotFound, Unavailable
from tests.fakes.openai_server import Reply, context_full, disconnect, disconnect_midway, error, garbage, slow, text
from tests.provider_service.conftest import at, outcomes, words


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
