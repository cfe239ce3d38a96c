"""The official OpenAI client, pointed at HomeAgent: every process of it takes part in every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from tests.conftest import far_end_in_thread
from tests.fakes.openai_server import FakeOpenAI, error, text, tool_call
from tests.home import API_KEY, LLM_KEY, Home


@pytest.fixture(scope="module")
def far() -> Iterator[FakeOpenAI]:
    with far_end_in_thread() as fake:
        yield fake


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory, far: FakeOpenAI) -> Iterator[Home]:
    with Home(tmp_path_factory.mktemp("home"), far.url) as home:
        yield home


@pytest.fixture
def client(shared_home: Home) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_home.url}/v1", api_key=API_KEY, max_retries=0, timeout=30) as client:
        yield client


def ask(client: openai.OpenAI, message: str, **more: object) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(  # type: ignore[call-overload,no-any-return]
        model="homeagent", messages=[{"role": "user", "content": message}], **more
    )


def test_a_plain_answer_with_usage(client: openai.OpenAI, far: FakeOpenAI) -> None:
    answer = ask(client, "hello there")
    assert answer.choices[0].message.content is not None
    assert "hello there" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0
    assert far.requests[-1].headers["Authorization"] == f"Bearer {LLM_KEY}"


def test_a_streamed_answer_with_usage(client: openai.OpenAI, far: FakeOpenAI) -> None:
    pieces, usage = [], None
    far.push(text("streamed: this sentence comes in pieces", pieces=6, chunk_delay_s=0.05))
    stream = client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "stream me this sentence please"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == "streamed: this sentence comes in pieces"
    assert sum(1 for piece in pieces if piece) > 1
    assert usage is not None and usage.total_tokens > 0


def test_a_tool_of_a_plugin_process_is_used(client: openai.OpenAI) -> None:
    answer = ask(client, 'call tool echo {"text": "猫 in a box"}')
    assert "猫 in a box" in (answer.choices[0].message.content or "")


def test_arguments_that_do_not_fit_are_explained_to_the_model(client: openai.OpenAI, far: FakeOpenAI) -> None:
    before = len(far.requests)
    far.push(tool_call("echo", {"wrong": 1}))
    ask(client, "repeat nothing at all")
    told = json.loads(json.dumps(far.requests[-1].body))["messages"][-1]
    assert told["role"] == "tool"
    assert "text" in told["content"] and "required" in told["content"]
    assert len(far.requests) - before == 2


def test_models_are_listed_and_an_unknown_one_is_404(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list().data]
    assert "homeagent" in names and "fake-model" in names
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-unknown", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_401(shared_home: Home) -> None:
    with openai.OpenAI(base_url=f"{shared_home.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            ask(stranger, "hi")


def test_the_same_idempotency_key_gives_the_same_answer_once(client: openai.OpenAI, far: FakeOpenAI) -> None:
    answers = [
        ask(client, "only once", extra_headers={"Idempotency-Key": "delivery-1"}).choices[0].message.content
        for _ in range(3)
    ]
    assert len(set(answers)) == 1
    asked = [request.body["messages"][-1]["content"] for request in far.requests]
    assert len([content for content in asked if content.endswith("only once")]) == 1


def test_a_failing_far_end_is_an_error_and_the_next_turn_works(client: openai.OpenAI, far: FakeOpenAI) -> None:
    far.push(error(400, "this request is odd"))
    with pytest.raises(openai.APIError):
        ask(client, "fail please")
    assert "works again" in (ask(client, "works again").choices[0].message.content or "")


def test_hi_costs_at_most_1500_tokens(client: openai.OpenAI, far: FakeOpenAI) -> None:
    ask(client, "hi")
    body = far.requests[-1].body
    characters = len(json.dumps(body["messages"])) + len(json.dumps(body.get("tools", [])))
    assert characters / 3.5 <= 1500, characters


def test_the_conversation_goes_on_by_metadata_and_by_the_clients_own_history(
    client: openai.OpenAI, far: FakeOpenAI
) -> None:
    ask(client, "my first sentence", extra_body={"metadata": {"conversation": "c-1"}})
    ask(client, "my second sentence", extra_body={"metadata": {"conversation": "c-1"}})
    assert next(m["content"] for m in far.requests[-1].body["messages"] if m["role"] == "user") == "my first sentence"
    first = ask(client, "a question without a name")
    history = [
        {"role": "user", "content": "a question without a name"},
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "and the next one"},
    ]
    client.chat.completions.create(model="homeagent", messages=history)  # type: ignore[arg-type]
    sent = far.requests[-1].body["messages"]
    assert next(m["content"] for m in sent if m["role"] == "user") == "a question without a name"
    assert len([m for m in sent if m["role"] == "user"]) == 2
