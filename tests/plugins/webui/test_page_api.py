from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from homeagent_sdk.errors import Unavailable
from plugins.webui.live_pages import PAGES, LivePages
from tests.plugins.live_kernel import LiveKernel
from tests.plugins.webui.conftest import Web, unsafe_jar


async def send(web: Web, text: str, conversation: str = "c1", delivery_id: str = "d1") -> dict[str, Any]:
    body = {"text": text, "conversation": conversation, "delivery_id": delivery_id}
    async with web.client.post(web.url + "/api/send", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def get(web: Web, path: str, **query: str) -> Any:
    async with web.client.get(web.url + path, params=query) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def lines(response: aiohttp.ClientResponse) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await response.text()).splitlines()]


async def event(response: aiohttp.ClientResponse) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            line = await response.content.readline()
            if line.startswith(b"data: "):
                found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                return found


async def test_a_message_is_sent_and_its_turn_followed(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    await live.log_in()
    accepted = await send(live, "hi")
    assert live.kernel.submissions[0]["conversation"] == "owner/c1"
    assert live.kernel.submissions[0]["channel"] == "webui"
    feed = await live.kernel.feed()
    async with live.client.get(live.url + "/api/follow", params={"ticket": accepted["ticket"]}) as response:
        await feed.say("Hel")
        await feed.add({"type": "tool", "tool": "timer_set", "status": "started"})
        await feed.end("Hello")
        items = await lines(response)
    assert [item["type"] for item in items] == ["started", "delta", "tool", "outcome"]


async def test_a_message_that_is_sent_twice_is_one_turn(live: Web) -> None:
    await live.log_in()
    first, again = await send(live, "hi"), await send(live, "hi")
    assert (first["status"], again["status"]) == ("accepted", "duplicate")
    assert first["turn_id"] == again["turn_id"]


async def test_a_turn_can_be_followed_only_by_whom_it_belongs_to(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    await live.log_in()
    ticket = (await send(live, "hi"))["ticket"]
    await live.log_in("ha-member")
    for wrong in (ticket, "t1", "t1.00", ""):
        async with live.client.get(live.url + "/api/follow", params={"ticket": wrong}) as response:
            assert response.status == 404


async def test_a_follow_goes_on_over_a_restart_of_the_kernel(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    await live.log_in()
    ticket = (await send(live, "hi"))["ticket"]
    feed = await live.kernel.feed()
    async with live.client.get(live.url + "/api/follow", params={"ticket": ticket}) as response:
        await feed.say("Hel")
        await response.content.readuntil(b"Hel")
        await feed.cut_off({"type": "delta", "text": "Hi"})
        await feed.end("Hi")
        rest = (await response.text()).split("\n", 1)[1]
    assert [json.loads(line)["type"] for line in rest.splitlines()] == ["reset", "delta", "outcome"]


async def test_a_silent_follow_is_kept_alive(live: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.webui.page_api._KEEP_ALIVE_S", 0.05)
    await live.log_in()
    ticket = (await send(live, "hi"))["ticket"]
    async with live.client.get(live.url + "/api/follow", params={"ticket": ticket}) as response:
        await response.content.readuntil(b'{"type":"ping"}\n')


async def test_a_follow_that_cannot_go_on_says_why(live: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(live.kernel, LiveKernel)
    await live.log_in()
    ticket = (await send(live, "hi"))["ticket"]
    live.kernel.feeds.clear()
    async with live.client.get(live.url + "/api/follow", params={"ticket": ticket}) as response:
        (item,) = await lines(response)
    assert item["type"] == "failed"
    assert item["error"]["code"] == "not_found"


async def test_history_and_conversations_are_the_principals_own(web: Web) -> None:
    await web.log_in()
    await send(web, "one", "c1", "d1")
    await send(web, "two", "c2", "d2")
    await web.answer(say="by api", metadata={"conversation": "c3"})
    found = await get(web, "/api/conversations")
    assert [(c["conversation"], c["title"]) for c in found["conversations"]] == [("c2", "two"), ("c1", "one")]
    (turn,) = (await get(web, "/api/history", conversation="c1"))["turns"]
    assert (turn["text"], turn["answer"], turn["outcome"]) == ("one", "one", "answer")
    async with web.client.get(web.url + "/api/follow", params={"ticket": turn["ticket"]}) as response:
        assert (await lines(response))[-1]["type"] == "outcome"
    await web.log_in("ha-member")
    assert (await get(web, "/api/conversations"))["conversations"] == []
    assert (await get(web, "/api/history", conversation="c1"))["turns"] == []


async def test_stop_stops_the_lane_of_the_principal(web: Web) -> None:
    await web.log_in("ha-member")
    async with web.client.post(web.url + "/api/stop", json={"conversation": "c1"}) as response:
        assert (await response.json()) == {"stopped": False}
    assert web.kernel.stops == [{"channel": "webui", "conversation": "member/c1"}]


async def test_what_is_no_json_is_refused(web: Web) -> None:
    await web.log_in()
    body = json.dumps({"text": "hi", "conversation": "c", "delivery_id": "d"})
    async with web.client.post(web.url + "/api/send", data=body, headers={"Content-Type": "text/plain"}) as response:
        assert response.status == 415
    for wrong in ({"text": ""}, {"text": "x"}, {"text": "x", "conversation": "c"}, {"text": "x", "conversation": 1}):
        async with web.client.post(web.url + "/api/send", json=wrong) as response:
            assert response.status == 400
    assert web.kernel.submissions == []


async def test_a_refusal_of_the_kernel_reaches_the_page(web: Web) -> None:
    await web.log_in()
    web.kernel.submit_errors.append(Unavailable("/d/journal.db cannot be written", hint="free some space"))
    body = {"text": "hi", "conversation": "c", "delivery_id": "d"}
    async with web.client.post(web.url + "/api/send", json=body) as response:
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "/d/journal.db cannot be written (free some space)"


async def test_the_texts_need_no_login_and_come_in_both_languages(web: Web) -> None:
    english, chinese = await get(web, "/api/texts", lang="en"), await get(web, "/api/texts", lang="zh")
    assert english["texts"]["send"] == "Send"
    assert chinese["texts"]["send"] == "发送"
    assert english["texts"].keys() == chinese["texts"].keys()
    async with web.client.get(web.url + "/api/texts", headers={"Accept-Language": "zh-TW"}) as response:
        assert (await response.json())["language"] == "zh"


@pytest.mark.parametrize(
    ("sources", "kind"),
    [
        ([], "none"),
        ([{"model": "tiny", "embedded": True}], "embedded"),
        ([{"model": "big", "embedded": False}, {"model": "tiny", "embedded": True}], "configured"),
    ],
)
async def test_the_state_tells_what_kind_of_model_answers(web: Web, sources: list[Any], kind: str) -> None:
    async def answer(body: Any, call: Any) -> dict[str, Any]:
        return {"sources": sources}

    web.kernel.bus.peers["provider"].serve("provider.sources", answer)
    await web.log_in()
    assert (await get(web, "/api/state"))["models"]["kind"] == kind


async def test_what_the_agent_says_by_itself_appears_on_the_open_pages_of_that_person(web: Web) -> None:
    await web.log_in()
    async with web.client.get(web.url + "/api/events") as mine, aiohttp.ClientSession(cookie_jar=unsafe_jar()) as other:
        await mine.content.readuntil(b"\n\n")
        async with other.post(web.url + "/login", json={"key": "ha-member"}) as response:
            assert response.status == 200
        async with other.get(web.url + "/api/events") as theirs:
            await theirs.content.readuntil(b"\n\n")
            receipt = await web.kernel.send_output("webui", "webui", "Ding", conversation="owner/c1", output_id="t9")
            assert receipt["status"] == "ok"
            await web.kernel.send_output(
                "webui", "webui", "Dong", conversation="member/c1", principal="member", output_id="t8"
            )
            seen, other_seen = await event(mine), await event(theirs)
    assert (seen["type"], seen["conversation"], seen["text"], seen["turn_id"]) == ("output", "c1", "Ding", "t9")
    assert other_seen["text"] == "Dong"


async def test_without_an_open_page_an_output_is_not_called_seen(web: Web) -> None:
    assert (await web.kernel.send_output("webui", "webui", "Ding", conversation="owner/c1"))["status"] == "unconfirmed"
    other = await web.kernel.send_output("webui", "webui", "Ding", conversation="member/c1", output_id="o2")
    assert other["status"] == "failed"


async def test_other_pages_learn_of_a_message_and_of_changed_models(web: Web) -> None:
    await web.log_in()
    async with web.client.get(web.url + "/api/events") as response:
        await response.content.readuntil(b"\n\n")
        accepted = await send(web, "hi")
        told = await event(response)
        assert (told["type"], told["text"], told["ticket"]) == ("turn", "hi", accepted["ticket"])
        await web.kernel.peer.publish("config.changed", {"keys": ["core.agent.persona"]})
        await web.kernel.peer.publish("config.changed", {"keys": ["core.llm.sources.a.model"]})
        assert await event(response) == {"type": "state"}


async def test_a_page_that_reads_too_slowly_is_cut_off() -> None:
    pages = LivePages(structlog.get_logger())
    slow, quick = pages.open("owner"), pages.open("owner")
    events = quick.events()
    for number in range(65):
        pages.push({"type": "output", "number": number}, "owner")
        assert await anext(events) == {"type": "output", "number": number}
    assert not slow.is_open
    assert [event async for event in slow.events()] == []
    assert (len(pages), pages.cut_off) == (1, 1)
    await events.aclose()


async def test_the_number_of_open_pages_ends() -> None:
    pages = LivePages(structlog.get_logger())
    first = pages.open("owner")
    for _ in range(PAGES):
        pages.open("owner")
    assert len(pages) == PAGES
    assert not first.is_open


async def test_a_closed_page_is_forgotten(web: Web) -> None:
    await web.log_in()
    async with web.client.get(web.url + "/api/events") as response:
        await response.content.readuntil(b"\n\n")
    for attempt in range(1000):
        sent = await web.kernel.send_output("webui", "webui", "x", conversation="owner/c1", output_id=f"o{attempt}")
        if sent["status"] == "unconfirmed":
            return
    pytest.fail("the page is still thought to be open")


def test_every_text_that_the_page_shows_is_in_the_catalogue() -> None:
    import re

    from homeagent_sdk.catalogue import texts

    folder = Path("plugins/webui/static")
    wanted: set[str] = set()
    for file in folder.iterdir():
        content = file.read_text()
        wanted.update(re.findall(r'data-(?:text|label|hint)="(\w+)"', content))
        if file.suffix == ".js":
            wanted.update(re.findall(r'\bt\("(\w+)"', content))
    wanted.update(("tool_started", "tool_ok", "tool_failed", "banner_embedded", "banner_none"))
    shown = {key.removeprefix("web.page.") for key in texts("web", "en") if key.startswith("web.page.")}
    assert wanted == shown


def test_every_refusal_has_its_words_in_the_catalogue() -> None:
    from homeagent_sdk.catalogue import texts
    from plugins.webui.errors import REFUSALS

    prefix = "web.refused."
    assert {key.removeprefix(prefix) for key in texts("web", "zh") if key.startswith(prefix)} == REFUSALS.keys()
