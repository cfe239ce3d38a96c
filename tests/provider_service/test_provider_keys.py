"""Keys go to their source and nowhere else; sources are what the configuration says."""

import json

import pytest

from homeagent_sdk.errors import Unavailable
from tests.fakes.openai_server import Reply, error, tool_call
from tests.provider_service.conftest import QUICK, at, running


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
