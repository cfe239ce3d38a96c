"""The chat page in a real browser. Set HOMEAGENT_TEST_SCREENSHOTS to a folder to look at it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.plugins.live_kernel import LiveKernel
from tests.plugins.webui.conftest import Web, running

playwright_api = pytest.importorskip("playwright.async_api")
expect = playwright_api.expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

MARKDOWN = """## Heating

The **living room** is at *21 °C*, see `sensor.living`:

1. Kitchen
   - oven ~~on~~ off
2. Bath

> quoted

| room | °C |
|---|---:|
| bath | 24 |

```python
print("<b>hello</b>")
```

[docs](https://example.org/a_(b)) and https://example.org/x. <img src=x onerror=alert(1)>
[bad](javascript:alert(1)) ![pic](https://example.org/p.png)
"""


class Page:
    """A page of the browser, by what people do with it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._console(message))

    def _console(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.problems.append(message.text)

    async def log_in(self, key: str = "ha-owner") -> None:
        await self.page.goto(self.url)
        await self.page.fill("#key", key)
        await self.page.keyboard.press("Enter")
        await self.page.wait_for_selector("#input")

    async def say(self, text: str) -> None:
        await self.page.fill("#input", text)
        await self.page.press("#input", "Enter")

    def turn(self, number: int) -> Any:
        return self.page.locator(".turn").nth(number)

    async def shows(self, selector: str, text: str) -> None:
        await expect(self.page.locator(selector).last).to_contain_text(text, timeout=10_000)

    async def picture(self, name: str) -> None:
        folder = os.environ.get("HOMEAGENT_TEST_SCREENSHOTS")
        if folder:
            await self.page.screenshot(path=Path(folder) / f"{name}.png")


@pytest_asyncio.fixture(loop_scope="module")
async def live(tmp_path: Path) -> AsyncIterator[Web]:
    async for running_web in running(LiveKernel(), tmp_path / "webui"):
        yield running_web


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Any]:
    async with playwright_api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser: Any, web: Web, **options: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(**{"locale": "en-US", "viewport": {"width": 1200, "height": 800}, **options})
    page = Page(await context.new_page(), web.url)
    yield page
    await context.close()
    assert page.problems == []


def kernel_of(web: Web) -> LiveKernel:
    assert isinstance(web.kernel, LiveKernel)
    return web.kernel


async def test_a_conversation_from_login_to_answer(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.page.goto(page.url)
        await page.picture("login")
        await page.page.fill("#key", "ha-wrong")
        await page.page.keyboard.press("Enter")
        await page.shows("#problem", "not valid")
        await page.log_in()
        await page.shows("#empty", "What can I do for you?")
        await page.picture("empty")
        await page.say("How warm is it?")
        feed = await kernel_of(live).feed()
        await page.shows(".said", "How warm is it?")
        await expect(page.page.locator("#stop")).to_be_visible()
        await feed.add({"type": "reasoning", "text": "I have to look."})
        await feed.add({"type": "tool", "tool": "sensor_read", "status": "started"})
        await page.shows(".tool", "sensor_read …")
        await feed.add({"type": "tool", "tool": "sensor_read", "status": "ok"})
        await page.shows(".tool", "sensor_read ✓")
        await feed.say("It is **21 °C**")
        await page.shows(".answer strong", "21 °C")
        await page.picture("streaming")
        await feed.end("It is **21 °C** in the living room.")
        await page.shows(".answer", "in the living room.")
        await expect(page.page.locator("#stop")).to_be_hidden()
        await expect(page.page.locator("#conversations button")).to_contain_text("How warm is it?")
        await page.picture("answered")


async def test_markdown_is_shown_and_markup_is_text(live: Web, browser: Any) -> None:
    async with opened(browser, live, viewport={"width": 1200, "height": 1100}) as page:
        dialogs: list[str] = []
        page.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        await page.log_in()
        await page.say("show me")
        await (await kernel_of(live).feed()).end(MARKDOWN)
        answer = page.page.locator(".answer").last
        await expect(answer.locator("h2")).to_have_text("Heating")
        await expect(answer.locator("ol > li")).to_have_count(2)
        await expect(answer.locator("ol ul li s")).to_have_text("on")
        await expect(answer.locator("td").first).to_have_text("bath")
        await expect(answer.locator("pre code")).to_have_text('print("<b>hello</b>")')
        await expect(answer.locator("blockquote")).to_have_text("quoted")
        links = await answer.locator("a").evaluate_all("all => all.map(a => [a.getAttribute('href'), a.rel])")
        assert [link for link, _ in links] == [
            "https://example.org/a_(b)",
            "https://example.org/x",
            "https://example.org/p.png",
        ]
        assert all("noopener" in rel for _, rel in links)
        assert await answer.locator("img").count() == 0
        await expect(answer).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(answer).to_contain_text("[bad](javascript:alert(1))")
        assert dialogs == []
        await page.picture("markdown")


async def test_enter_sends_shift_enter_does_not_and_typing_chinese_does_not(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.page.fill("#input", "one")
        await page.page.press("#input", "Shift+Enter")
        await page.page.keyboard.type("two")
        composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true})"
        await page.page.evaluate(f"document.getElementById('input').dispatchEvent({composing})")
        assert kernel_of(live).submissions == []
        await page.page.press("#input", "Enter")
        await kernel_of(live).feed()
        assert [s["text"] for s in kernel_of(live).submissions] == ["one\ntwo"]
        await expect(page.page.locator("#input")).to_have_value("")


async def test_stop_stops_and_keeps_what_was_said(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("count")
        feed = await kernel_of(live).feed()
        await feed.say("one, two")
        await page.shows(".answer", "one, two")
        await page.page.click("#stop")
        await feed.end("one, two", "stopped")
        await page.shows(".state", "Stopped.")
        await page.shows(".answer", "one, two")
        conversation = kernel_of(live).submissions[0]["conversation"]
        assert kernel_of(live).stops == [{"channel": "webui", "conversation": conversation}]


async def test_a_reload_shows_the_history_and_goes_on_with_what_runs(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("first")
        await (await kernel_of(live).feed()).end("one")
        await page.shows(".answer", "one")
        await page.say("second")
        feed = await kernel_of(live).feed("t2")
        await feed.say("tw")
        await page.shows(".answer", "tw")
        await page.page.reload()
        await page.shows(".answer", "tw")
        await feed.end("two")
        await page.shows(".answer", "two")
        await expect(page.page.locator(".turn")).to_have_count(2)
        await expect(page.turn(0).locator(".answer")).to_have_text("one")


async def test_partial_text_is_withdrawn_when_the_turn_starts_again(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("hi")
        feed = await kernel_of(live).feed()
        await feed.say("Wrong")
        await page.shows(".answer", "Wrong")
        await feed.cut_off({"type": "delta", "text": "Right"})
        await page.shows(".answer", "Right")
        await expect(page.page.locator(".answer")).not_to_contain_text("Wrong")
        await feed.end("Right!")
        await page.shows(".answer", "Right!")


async def test_the_page_outlives_a_restart_of_the_plugin(tmp_path: Path, browser: Any) -> None:
    kernel, data_dir = LiveKernel(), tmp_path / "webui"
    first = running(kernel, data_dir)
    web = await anext(first)
    port = int(web.url.rpartition(":")[2])
    async with opened(browser, web) as page:
        await page.log_in()
        await page.say("hi")
        feed = await kernel.feed()
        await feed.say("Hel")
        await page.shows(".answer", "Hel")
        await first.aclose()
        await page.shows("#connection", "reconnecting")
        await page.say("are you there?")
        await page.shows(".meta", "Not sent yet")
        await page.picture("reconnecting")
        async for _ in running(kernel, data_dir, port=port):
            await (await kernel.feed("t2")).end("yes")
            await feed.end("Hello")
            await expect(page.turn(0).locator(".answer")).to_have_text("Hello", timeout=15_000)
            await expect(page.turn(1).locator(".answer")).to_have_text("yes", timeout=15_000)
            await expect(page.page.locator("#connection")).to_have_text("", timeout=15_000)
            await expect(page.page.locator(".turn")).to_have_count(2)
    assert [s["text"] for s in kernel.submissions] == ["hi", "are you there?"]


async def test_what_the_agent_says_by_itself_appears_live(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("remind me")
        await (await kernel_of(live).feed()).end("I will.")
        await page.shows(".answer", "I will.")
        lane = kernel_of(live).submissions[0]["conversation"]
        await live.kernel.send_output("webui", "webui", "Ding **dong**", conversation=lane, output_id="x1")
        await page.shows(".answer", "Ding dong")
        await page.page.click("#new")
        await expect(page.page.locator(".turn")).to_have_count(0)
        await live.kernel.send_output("webui", "webui", "Again", conversation=lane, output_id="x2")
        await expect(page.page.locator("#conversations li.unread")).to_have_count(1)


async def _send_to_api(live: Web) -> dict[str, Any]:
    text, lane = "The **laundry** is done", "owner/kitchen-panel"
    receipt: dict[str, Any] = await live.kernel.send_output("webui", "api", text, conversation=lane)
    return receipt


async def test_what_the_agent_says_in_a_conversation_of_the_api_is_a_notice(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.shows("#empty", "What can I do")
        async with asyncio.timeout(10):
            while (await _send_to_api(live))["status"] != "ok":  # noqa: ASYNC110 - until the page listens
                await asyncio.sleep(0.05)
        await page.shows(".notice", "The laundry is done")
        await page.shows(".notice", "kitchen-panel")
        await page.picture("notice")
        await page.page.click(".notice > button")
        await expect(page.page.locator(".notice")).to_have_count(0)


async def test_two_pages_of_one_person_show_the_same(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        second = Page(await page.page.context.new_page(), page.page.url)
        await second.page.goto(second.url)
        await second.shows("#empty", "What can I do")
        await page.say("hello from the first")
        feed = await kernel_of(live).feed()
        await second.shows(".said", "hello from the first")
        await feed.end("seen by both")
        await page.shows(".answer", "seen by both")
        await second.shows(".answer", "seen by both")
        for each in (page, second):
            await expect(each.page.locator(".turn")).to_have_count(1)
        assert second.problems == []


async def test_conversations_are_listed_and_can_be_gone_back_to(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        for number, text in enumerate(("About cats", "About dogs"), start=1):
            await page.page.click("#new")
            await page.say(text)
            await (await kernel_of(live).feed(f"t{number}")).end(f"{text}, yes.")
            await page.shows(".answer", f"{text}, yes.")
        await expect(page.page.locator("#conversations button")).to_have_count(2)
        await page.page.click("#conversations button:has-text('About cats')")
        await page.shows(".answer", "About cats, yes.")
        await expect(page.page.locator(".turn")).to_have_count(1)
        await expect(page.page.locator("#title")).to_have_text("About cats")


async def test_an_error_is_shown_with_what_to_do(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("hi")
        error = {"code": "unavailable", "message": "all sources failed", "hint": "check the address"}
        await (await kernel_of(live).feed()).end("", "error", error=error)
        await page.shows(".state.bad", "all sources failed check the address")


async def test_a_tiny_model_is_called_that_in_both_languages(live: Web, browser: Any) -> None:
    async def sources(body: Any, call: Any) -> dict[str, Any]:
        return {"sources": [{"model": "smollm2-135m", "embedded": True}]}

    live.kernel.bus.peers["provider"].serve("provider.sources", sources)
    async with opened(browser, live) as page:
        await page.log_in()
        await page.shows("#banner", "tiny model")
        await page.page.click("#banner summary")
        await page.shows("#banner-how", "core.llm.sources.main.base_url")
        await page.picture("banner")
        await page.page.click("#language")
        await page.shows("#banner", "微型模型")
        await page.shows(".keys", "Enter 发送")
        await page.picture("chinese")
        await page.page.reload()
        await page.shows("#empty", "有什么可以帮您")


async def test_it_works_on_a_phone_in_the_dark(live: Web, browser: Any) -> None:
    async with opened(
        browser, live, viewport=PHONE, color_scheme="dark", has_touch=True, is_mobile=True, locale="zh-CN"
    ) as page:
        await page.log_in()
        await page.say("你好，请列出购物清单，并告诉我明天早上七点半之前需要准备什么")
        await (await kernel_of(live).feed()).end(
            "好的：\n\n- 牛奶\n- 鸡蛋\n\n```\nvery long line " + "x" * 120 + "\n```"
        )
        await page.shows(".answer", "牛奶")
        await page.picture("phone")
        width = await page.page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        await page.page.click("#menu")
        await expect(page.page.locator("#new")).to_be_in_viewport()
        await page.picture("phone-drawer")
        await page.page.click("#new")
        await expect(page.page.locator(".turn")).to_have_count(0)
        await expect(page.page.locator("#new")).not_to_be_in_viewport()


async def test_light_and_dark_can_be_chosen_and_are_kept(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        color = "getComputedStyle(document.body).backgroundColor"
        before = await page.page.evaluate(color)
        await page.page.click("#theme")
        assert await page.page.evaluate(color) != before
        await page.picture("dark")
        await page.page.reload()
        await page.page.wait_for_selector("#input")
        await expect(page.page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_logging_out_leads_to_the_login(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.page.click("#logout")
        await page.page.wait_for_selector("#key")
        await page.page.goto(page.url)
        await page.page.wait_for_selector("#key")


async def test_a_long_answer_is_followed_to_its_end_unless_someone_scrolls_up(live: Web, browser: Any) -> None:
    async with opened(browser, live) as page:
        await page.log_in()
        await page.say("tell me a lot")
        feed = await kernel_of(live).feed()
        await feed.say("line\n\n" * 60 + "END-ONE")
        await expect(page.page.locator(".answer p").last).to_be_in_viewport()
        await page.page.evaluate("document.getElementById('scroller').scrollTo({top: 0})")
        await expect(page.page.locator("#latest")).to_be_visible()
        await feed.end("line\n\n" * 90 + "END-TWO")
        await page.shows(".answer", "END-TWO")
        assert await page.page.evaluate("document.getElementById('scroller').scrollTop") == 0
        await page.page.click("#latest")
        await expect(page.page.locator(".answer p").last).to_be_in_viewport()
