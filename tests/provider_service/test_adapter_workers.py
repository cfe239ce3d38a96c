"""Adapters run in processes that can be killed, and that are replaced."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from provider_service.adapter_workers import AdapterWorkers
from provider_service.errors import AdapterError
from provider_service.service import BUNDLED_ADAPTERS

REQUEST = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
BOMB = "return { transform_request = function() return { n = string.find(('a'):rep(40), ('a*'):rep(40) .. 'b') } end }"


def write(workers, name, script):
    (workers.user / f"{name}.lua").write_text(script)


async def ask(workers, adapter="openai"):
    answer = await workers.perform("request", adapter, request=REQUEST, meta={"source": "s"})
    return json.loads(answer["body"])


async def test_the_bundled_adapter_answers(workers):
    assert (await ask(workers))["messages"] == [{"content": "hi", "role": "user"}]
    assert workers.counters.started == 1


async def test_the_users_copy_wins_and_an_edit_takes_effect_at_once(workers):
    await ask(workers)
    for number in range(3):
        write(workers, "openai", f"return {{ transform_request = function() return {{ mine = {number} }} end }}")
        assert await ask(workers) == {"mine": number}
    (workers.user / "openai.lua").unlink()
    assert "messages" in await ask(workers)
    assert workers.counters.started == 1


async def test_a_stream_goes_on_with_the_script_it_began_with(workers):
    def script(word):
        return f"return {{ transform_stream_chunk = function() return {{ content = '{word}' }} end }}"

    write(workers, "mine", script("old"))
    version = (await ask_version(workers, "mine"))["version"]
    write(workers, "mine", script("newer"))
    for wanted, pinned in (("old", version), ("newer", None)):
        answer = await workers.perform("chunks", "mine", version=pinned, events=[b"{}"], state=b"")
        assert json.loads(answer["result"]) == [{"content": wanted}]


async def ask_version(workers, adapter):
    return await workers.perform("load", adapter)


async def test_the_state_of_a_stream_travels_with_it(workers):
    counting = "function(e, state) state.n = (state.n or 0) + 1 return { content = tostring(state.n) } end"
    write(workers, "mine", f"return {{ transform_stream_chunk = {counting} }}")
    first = await workers.perform("chunks", "mine", events=[b"{}", b"{}"], state=b"")
    second = await workers.perform("chunks", "mine", events=[b"{}"], state=first["state"])
    assert json.loads(second["result"]) == [{"content": "3"}]


async def test_a_script_that_hangs_in_c_is_killed_and_costs_its_own_call_only(tmp_path):
    workers = AdapterWorkers(BUNDLED_ADAPTERS, tmp_path, call_limit_s=1.0, max_workers=1)
    write(workers, "bomb", BOMB)
    await ask(workers)
    stuck = asyncio.ensure_future(ask(workers, "bomb"))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(ask(workers)) for _ in range(5)]
    with pytest.raises(AdapterError, match="did not return within"):
        await stuck
    assert all("messages" in answer for answer in await asyncio.gather(*others))
    assert (workers.counters.killed, workers.counters.started, workers.counters.crashed) == (1, 2, 0)
    await workers.close()


async def test_a_script_that_loops_in_lua_is_ended_without_killing(workers):
    write(workers, "loop", "return { transform_request = function() while true do end end }")
    with pytest.raises(AdapterError, match="used up its time"):
        await ask(workers, "loop")
    assert "messages" in await ask(workers)
    assert workers.counters.killed == 0


async def test_a_worker_that_was_killed_is_replaced_unseen(workers):
    await ask(workers)
    (pid,) = workers.process_ids()
    os.kill(pid, signal.SIGKILL)
    assert "messages" in await ask(workers)
    assert workers.counters.crashed == 1
    assert workers.process_ids() != [pid]


async def test_a_worker_that_dies_under_a_call_is_replaced_once(workers):
    write(workers, "slow", "return { transform_request = function() local n = 0 while n < 1e12 do n = n + 1 end end }")
    await ask(workers)
    call = asyncio.ensure_future(ask(workers, "slow"))
    for _ in range(2):
        await asyncio.sleep(0.1)
        while not workers.process_ids():  # noqa: ASYNC110, another process has no event for this
            await asyncio.sleep(0.01)
        os.kill(workers.process_ids()[0], signal.SIGKILL)
    with pytest.raises(AdapterError, match="died"):
        await call
    assert "messages" in await ask(workers)


async def test_a_second_worker_helps_out_when_the_first_is_busy(workers):
    write(workers, "slow", "return { transform_request = function() local n = 0 while n < 1e12 do n = n + 1 end end }")
    await ask(workers)
    slow = asyncio.ensure_future(ask(workers, "slow"))
    await asyncio.sleep(0.05)
    assert "messages" in await ask(workers)
    assert workers.counters.started == 2
    with pytest.raises(AdapterError):
        await slow


async def test_a_cancelled_call_leaves_no_answer_behind_for_the_next(workers):
    await ask(workers)
    for _ in range(20):
        cancelled = asyncio.ensure_future(ask(workers, "ollama"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        assert "options" not in await ask(workers)
    assert workers.counters.started == 1


async def test_the_worker_dies_with_its_parent_and_has_no_secret(workers, monkeypatch):
    monkeypatch.setenv("HOMEAGENT_LLM_API_KEY", "s3cret")
    await ask(workers)
    (pid,) = workers.process_ids()
    environment, sockets = look_at(pid)
    assert "s3cret" not in environment
    assert sockets == 1
    await workers.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def look_at(pid):
    process = Path(f"/proc/{pid}")
    targets = [os.readlink(path) for path in (process / "fd").iterdir()]
    return (process / "environ").read_text(), sum(target.startswith("socket:") for target in targets)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("return {", "mine.lua"),
        ("return { transform_request = function() return 7 end }", "must return a table"),
        ("return { transform_request = function() return {} end, endpoint = 7 }", "endpoint"),
        ("return { transform_request = function() return {} end, headers = 'x' }", "headers"),
        (None, "there is no adapter mine.lua"),
    ],
)
async def test_a_script_that_is_wrong_says_what(workers, script, message):
    if script is not None:
        write(workers, "mine", script)
    with pytest.raises(AdapterError, match=message) as caught:
        await ask(workers, "mine")
    assert not caught.value.is_upstream


async def test_an_answer_that_is_no_json_is_not_the_scripts_fault(workers):
    with pytest.raises(AdapterError) as caught:
        await workers.perform("response", "openai", body=b"<html>")
    assert caught.value.is_upstream


async def test_a_body_may_be_json_text(workers):
    write(workers, "mine", "return { transform_request = function() return json.encode{ a = 1 } end }")
    assert await ask(workers, "mine") == {"a": 1}


async def test_a_few_lines_make_an_adapter(workers):
    write(workers, "mine", "return { endpoint = function(request, meta) return '/' .. request.model end }")
    answer = await workers.perform("request", "mine", request=REQUEST, meta={})
    assert answer["endpoint"] == "/m"
    assert json.loads(answer["body"])["model"] == "m"
