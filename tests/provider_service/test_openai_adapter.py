"""What openai.lua makes of requests and of the dialects of those who speak it."""

import json

import pytest

from provider_service.lua_adapter import LuaAdapter
from provider_service.service import BUNDLED_ADAPTERS

TOOL = {"name": "t", "description": "does t", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}


@pytest.fixture(scope="module")
def adapter():
    return LuaAdapter("openai", (BUNDLED_ADAPTERS / "openai.lua").read_text(), None, 2**26, 5.0)


@pytest.fixture
def request_body(adapter):
    def make(**request):
        request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **request}
        return json.loads(adapter.call("transform_request", request, {}, raw_keys=frozenset({"parameters"})))

    return make


@pytest.fixture
def chunks(adapter):
    return lambda *events: json.loads(adapter.stream(list(events), {})[0])


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "usage": None}


def test_a_plain_request(request_body):
    assert request_body() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_a_stream_asks_for_usage(request_body):
    body = request_body(stream=True, temperature=0, max_tokens=5)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["temperature"], body["max_tokens"]) == (0, 5)


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5.1", "openai/gpt-5"])
def test_reasoning_models_of_openai_get_what_they_take(request_body, model):
    body = request_body(model=model, temperature=0.7, max_tokens=5)
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body
    assert "temperature" not in body


def test_tools_are_wrapped_and_keep_the_order_of_their_schema(request_body):
    body = request_body(tools=[TOOL, {"name": "u"}], tool_choice={"type": "function", "function": {"name": "t"}})
    assert body["tools"][0] == {"type": "function", "function": TOOL}
    assert list(body["tools"][0]["function"]["parameters"]["properties"]) == ["z", "a"]
    assert body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert body["tool_choice"]["function"]["name"] == "t"


def test_without_tools_there_is_no_choice(request_body):
    body = request_body(tools=[], tool_choice="auto")
    assert "tools" not in body
    assert "tool_choice" not in body


def test_calls_of_both_layouts_and_results_go_back(request_body):
    flat = {"id": "1", "name": "t", "arguments": {"a": 1}}
    nested = {"id": "2", "type": "function", "function": {"name": "u", "arguments": '{"b": 2}'}}
    history = [
        {"role": "assistant", "content": "", "tool_calls": [flat, nested]},
        {"role": "tool", "tool_call_id": "1", "content": "[]"},
    ]
    first, second = request_body(messages=history)["messages"]
    assert first["content"] is None
    assert [call["function"] for call in first["tool_calls"]] == [
        {"name": "t", "arguments": '{"a":1}'},
        {"name": "u", "arguments": '{"b": 2}'},
    ]
    assert second == {"role": "tool", "tool_call_id": "1", "content": "[]"}


def test_images_pass(request_body):
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    assert request_body(messages=[{"role": "user", "content": parts}])["messages"][0]["content"] == parts


def test_text_reasoning_and_end_are_read(chunks):
    pieces = chunks(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="so", content=None),
        delta(content="你好"),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    )
    assert [piece.get("reasoning") for piece in pieces] == [None, "hm", "so", None, None]
    assert pieces[3] == {"content": "你好"}
    assert pieces[4] == {"finish_reason": "stop"}


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 4}}, 4),
        ({"prompt_cache_hit_tokens": 5, "prompt_cache_miss_tokens": 2}, 5),
        ({"prompt_tokens_details": None}, None),
    ],
)
def test_usage_is_read_in_its_dialects(chunks, usage, cached):
    counts = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    (piece,) = chunks(
        {"choices": [], "usage": {**counts, **usage, "completion_tokens_details": {"reasoning_tokens": 2}}}
    )
    told = piece["usage"]
    assert (told["prompt_tokens"], told.get("cached_tokens"), told["reasoning_tokens"]) == (7, cached, 2)


def test_fragments_of_tool_calls_are_read(chunks):
    call = {"index": 1, "id": "c", "type": "function", "function": {"name": "t", "arguments": ""}}
    pieces = chunks(delta(tool_calls=[call]), delta(tool_calls=[{"index": 1, "function": {"arguments": '{"a'}}]))
    assert pieces[0]["tool_calls"] == [{"index": 1, "id": "c", "name": "t", "arguments": ""}]
    assert pieces[1]["tool_calls"] == [{"index": 1, "arguments": '{"a'}]


def test_a_whole_answer_is_read(adapter):
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
    }
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}}
    answer = json.loads(adapter.call("transform_response", body))
    assert answer["tool_calls"] == [{"id": "c", "name": "t", "arguments": "{}"}]
    assert answer["finish_reason"] == "tool_calls"


def test_content_in_parts_and_refusals_are_text(chunks):
    pieces = chunks(delta(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), delta(refusal="no"))
    assert [piece["content"] for piece in pieces] == ["ab", "no"]


def test_signatures_come_back_byte_for_byte(adapter, request_body):
    details = [{"z": "sig==", "a": None, "n": 2**70}]
    extra = {"google": {"thought_signature": "QUJD", "b": 1, "a": 2}}
    call = {"index": 0, "id": "c", "function": {"name": "t", "arguments": "{}"}, "extra_content": extra}
    (piece,) = json.loads(adapter.stream([delta(reasoning_details=details, tool_calls=[call])], {})[0])
    assert piece["opaque"] == {"reasoning_details": details, "extra_content 1": extra}
    message = {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "name": "t", "arguments": "{}"}]}
    (sent,) = request_body(messages=[{**message, "opaque": piece["opaque"]}])["messages"]
    assert sent["reasoning_details"] == details
    assert sent["tool_calls"][0]["extra_content"] == extra
    assert "opaque" not in sent


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (400, {"error": {"code": "context_length_exceeded", "message": "x"}}, "context", "context_length_exceeded"),
        (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "x"}}, "context", "400"),
        (400, {"error": {"code": None, "message": "This model's maximum context length is 9"}}, "context", None),
        (400, {"object": "error", "message": "maximum context length is 9", "code": 400}, "context", "400"),
        (400, {"error": {"code": "bad", "message": "x"}}, None, "bad"),
        (500, {"error": {"message": "maximum context length"}}, None, None),
        (404, {"error": {"code": "model_not_found", "message": "x"}}, "model", "model_not_found"),
        (403, {"error": {"type": "permission_error", "message": "x"}}, "model", None),
        (403, {"error": {"code": "invalid_api_key", "message": "x"}}, "key", "invalid_api_key"),
        (429, {"error": {"code": "insufficient_quota", "message": "x"}}, "other", "insufficient_quota"),
        (502, "<html>Bad gateway</html>", None, None),
        (422, {"detail": [{"msg": "x"}]}, None, None),
        (400, {"error": "plain"}, None, None),
        (500, None, None, None),
        (500, [1], None, None),
    ],
)
def test_errors_are_told_apart_by_their_code(adapter, status, body, kind, code):
    told = json.loads(adapter.call("transform_error", status, body))
    assert (told.get("kind"), told.get("code")) == (kind, code)


def test_an_error_inside_an_answer_is_one(adapter, chunks):
    body = {"error": {"code": 429, "message": "slow down", "metadata": {}}, "choices": []}
    assert chunks(body)[0]["error"] == {"status": 429, "code": "429", "message": "slow down"}
    assert json.loads(adapter.call("transform_response", body))["error"]["message"] == "slow down"


@pytest.mark.parametrize(
    "event", [{}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]}, 7, "x", []]
)
def test_odd_events_are_nothing(chunks, event):
    assert chunks(event) == [{}]
