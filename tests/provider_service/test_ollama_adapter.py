"""What ollama.lua makes of requests and answers."""

import json

import pytest

from provider_service.lua_adapter import AdapterFailed, LuaAdapter
from provider_service.service import BUNDLED_ADAPTERS

META = {"context_window": 8192}


@pytest.fixture(scope="module")
def adapter():
    texts = [(BUNDLED_ADAPTERS / f"{name}.lua").read_text() for name in ("ollama", "openai")]
    return LuaAdapter("ollama", texts[0], texts[1], 2**26, 5.0)


@pytest.fixture
def request_body(adapter):
    def make(**request):
        request = {"model": "qwen3", "messages": [{"role": "user", "content": "hi"}], **request}
        return json.loads(adapter.call("transform_request", request, META, raw_keys=frozenset({"parameters"})))

    return make


def test_a_request_names_the_context_window_and_its_options(request_body):
    body = request_body(stream=True, temperature=0.2, max_tokens=64)
    assert body == {
        "model": "qwen3",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "options": {"temperature": 0.2, "num_predict": 64, "num_ctx": 8192},
    }


def test_not_streaming_is_said_since_the_default_is_to_stream(request_body):
    assert request_body()["stream"] is False


def test_thinking_can_be_switched_off(request_body):
    assert request_body(disable_thinking=True)["think"] is False
    assert "think" not in request_body(disable_thinking=False)


def test_images_go_beside_the_text(request_body):
    parts = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
    ]
    (message,) = request_body(messages=[{"role": "user", "content": parts}])["messages"]
    assert message == {"role": "user", "content": "what?", "images": ["iVBO"]}


def test_a_link_to_an_image_is_refused(request_body):
    parts = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    with pytest.raises(AdapterFailed, match="data only"):
        request_body(messages=[{"role": "user", "content": parts}])


def test_calls_are_objects_and_results_name_their_tool(request_body):
    calls = [
        {"id": "1", "type": "function", "function": {"name": "t", "arguments": '{"a": [], "n": null}'}},
        {"id": "2", "name": "u", "arguments": "not json"},
    ]
    history = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "done"},
    ]
    first, second = request_body(messages=history, tools=[{"name": "t"}])["messages"]
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == [
        {"a": [], "n": None},
        {"raw": "not json"},
    ]
    assert first["content"] == ""
    assert second == {"role": "tool", "content": "done", "tool_name": "t"}


def test_tools_are_left_out_when_none_may_be_called(request_body):
    assert "tools" in request_body(tools=[{"name": "t"}], tool_choice="auto")
    assert "tools" not in request_body(tools=[{"name": "t"}], tool_choice="none")


def test_a_stream_is_read(adapter):
    events = [
        {"message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
        {"message": {"role": "assistant", "content": "hel"}, "done": False},
        {"message": {"role": "assistant", "content": "lo"}, "done": False},
        {"message": {"content": ""}, "done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 2},
    ]
    pieces = json.loads(adapter.stream(events, {})[0])
    assert "".join(piece.get("content", "") for piece in pieces) == "hello"
    assert pieces[0]["reasoning"] == "hm"
    assert pieces[3]["finish_reason"] == "stop"
    assert pieces[3]["usage"] == {"prompt_tokens": 9, "completion_tokens": 2}


def test_calls_are_numbered_over_the_whole_stream(adapter):
    def event(name):
        return {"message": {"content": "", "tool_calls": [{"function": {"name": name, "arguments": {"x": []}}}]}}

    first, state = adapter.stream([event("a")], {})
    second, state = adapter.stream([event("b"), {"done": True}], json.loads(state))
    pieces = json.loads(first) + json.loads(second)
    assert [piece["tool_calls"][0]["index"] for piece in pieces[:2]] == [0, 1]
    assert pieces[0]["tool_calls"][0]["arguments"] == '{"x":[]}'
    assert pieces[2]["finish_reason"] == "tool_calls"


def test_a_whole_answer_is_read(adapter):
    body = {"message": {"role": "assistant", "content": "hi"}, "done": True, "done_reason": "length", "eval_count": 1}
    answer = json.loads(adapter.call("transform_response", body))
    assert (answer["content"], answer["finish_reason"]) == ("hi", "length")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"error": "model 'x' not found"}, "model"),
        (404, "404 page not found", None),
        (400, {"error": "does not support tools"}, None),
        (500, {"error": "llama runner process has terminated"}, None),
    ],
)
def test_errors_are_told_apart(adapter, status, body, kind):
    told = json.loads(adapter.call("transform_error", status, body))
    assert told.get("kind") == kind


def test_an_error_in_a_stream_is_one(adapter):
    (piece,) = json.loads(adapter.stream([{"error": "out of memory"}], {})[0])
    assert piece["error"]["message"] == "out of memory"
