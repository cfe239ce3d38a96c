from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.plugins.live_kernel import LiveKernel
from tests.plugins.webui.conftest import Web, running


async def status(web: Web, path: str, method: str = "GET", **headers: str) -> int:
    async with web.client.request(method, web.url + path, headers=headers, allow_redirects=False) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8080", "127.9.9.9", "[::1]:80", "LOCALHOST:1", "ha.localhost"]
)
async def test_the_names_of_this_machine_are_answered(web: Web, host: str) -> None:
    assert await status(web, "/healthz", Host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "192.168.1.5", ""])
@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/models", "/static/app.js"])
async def test_a_foreign_name_is_refused_everywhere(web: Web, host: str, path: str) -> None:
    assert await status(web, path, Host=host) == 403


async def test_a_name_is_allowed_by_a_setting_at_once(web: Web) -> None:
    assert await status(web, "/healthz", Host="ha.example.lan:8080") == 403
    await web.kernel.set_setting("webui", "allowed_hosts", "other.lan, HA.example.lan")
    assert await status(web, "/healthz", Host="ha.example.lan:8080") == 200


async def test_a_server_for_others_answers_to_addresses_but_not_to_foreign_names(tmp_path: Path) -> None:
    async for web in running(LiveKernel(), tmp_path / "webui", addr="0.0.0.0", public_bind=True):
        assert await status(web, "/healthz", Host="192.168.1.5:8080") == 200
        assert await status(web, "/healthz", Host="evil.example") == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://127.0.0.1:1"]
)
@pytest.mark.parametrize("path", ["/login", "/api/send", "/api/stop", "/api/logout"])
async def test_a_change_asked_for_by_another_site_is_refused(web: Web, origin: str, path: str) -> None:
    assert await status(web, path, "POST", Origin=origin) == 403


async def test_a_change_asked_for_across_sites_without_origin_is_refused(web: Web) -> None:
    assert await status(web, "/api/logout", "POST", **{"Sec-Fetch-Site": "cross-site"}) == 403


async def test_the_page_itself_and_a_proxy_before_it_may_ask_for_changes(web: Web) -> None:
    assert await status(web, "/api/logout", "POST", Origin=web.url) == 200
    await web.kernel.set_setting("webui", "allowed_hosts", "ha.example")
    assert await status(web, "/api/logout", "POST", Origin="https://ha.example", Host="ha.example") == 200


async def test_every_answer_has_the_security_headers(web: Web) -> None:
    for path in ("/login", "/static/app.js", "/v1/nothing", "/healthz"):
        async with web.client.get(web.url + path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["X-Frame-Options"] == "DENY"
            assert "frame-ancestors 'none'" in policy


def test_pages_need_neither_inline_script_nor_inline_style() -> None:
    folder = Path("plugins/webui/static")
    for page in folder.glob("*.html"):
        text = page.read_text()
        assert "<style" not in text
        assert ' style="' not in text
        assert " on" not in "".join(part.split(">")[0] for part in text.split("<button")[1:])
        assert text.count("<script") == text.count('<script type="module" src="/static/')


def test_no_script_of_the_page_can_turn_text_into_markup() -> None:
    for script in Path("plugins/webui/static").glob("*.js"):
        text = script.read_text()
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert way not in text, f"{script.name} uses {way}"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1", "/api/nothing", "/v1/chat/completions/x"])
async def test_an_unknown_path_is_json(web: Web, path: str) -> None:
    async with web.client.get(web.url + path, headers={"Accept": "*/*"}) as response:
        assert response.status == 404
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_an_unknown_page_is_told_in_words(web: Web) -> None:
    async with web.client.get(web.url + "/nowhere", headers={"Accept-Language": "zh-CN,en"}) as response:
        assert response.status == 404
        assert "不存在" in await response.text()


async def test_a_wrong_method_is_json_and_says_which_are_right(web: Web) -> None:
    async with web.client.get(web.url + "/v1/chat/completions") as response:
        assert response.status == 405
        assert "POST" in response.headers["Allow"]
        assert (await response.json())["error"]["code"] == "method_not_allowed"


async def test_static_files_cannot_be_left(web: Web) -> None:
    for path in ("/static/..%2fmain.py", "/static/../main.py", "/static/", "/static/main.py"):
        assert await status(web, path) == 404


async def test_an_unforeseen_failure_tells_no_details(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("the secret is 42")

    monkeypatch.setattr("plugins.webui.openai_api._parsed", broken)
    async with web.chat(say="hi") as response:
        assert response.status == 500
        assert "42" not in await response.text()


async def test_the_log_has_neither_keys_nor_messages(web: Web) -> None:
    with structlog.testing.capture_logs() as entries:
        await web.answer(say="the-message")
        await web.log_in()
        assert await status(web, "/api/history?conversation=the-conversation", Authorization="Bearer ha-owner") == 200
    logged = repr(entries)
    assert "/v1/chat/completions" in logged
    for secret in ("ha-owner", "the-message", "the-conversation", "homeagent_session"):
        assert secret not in logged
