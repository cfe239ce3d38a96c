from __future__ import annotations

import stat
from pathlib import Path

import aiohttp
import pytest

from homeagent_sdk.errors import Denied
from homeagent_sdk.plugin import Principal
from homeagent_sdk.testing import FakeKernel
from plugins.webui.errors import Refused
from plugins.webui.identity import REFUSED_S, REMEMBERED_S, AttemptLimiter, KeyRing
from plugins.webui.seal import COOKIE_S, Seal, load_secret
from tests.plugins.live_kernel import LiveKernel
from tests.plugins.webui.conftest import Web, running, unsafe_jar


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Kernel:
    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)
        self.asked = 0

    async def authenticate(self, key: str) -> Principal:
        self.asked += 1
        if key not in self.keys:
            raise Denied("nobody's")
        return Principal(key, key, "member")


async def test_without_a_login_there_is_only_the_way_to_it(web: Web) -> None:
    async with web.client.get(web.url + "/", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/login")
    for path in (
        "/api/state",
        "/api/conversations",
        "/api/history?conversation=x",
        "/api/events",
        "/api/follow?ticket=x",
    ):
        async with web.client.get(web.url + path) as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "not_logged_in"
    for path in ("/api/send", "/api/stop"):
        async with web.client.post(web.url + path, json={}) as response:
            assert response.status == 401


async def test_a_key_becomes_a_cookie_that_scripts_cannot_read(web: Web) -> None:
    async with web.client.post(web.url + "/login", json={"key": " ha-owner "}) as response:
        cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"Max-Age={COOKIE_S}" in cookie
    assert "ha-owner" not in cookie
    async with web.client.get(web.url + "/") as response:
        assert response.status == 200
        assert "composer" in await response.text()
    async with web.client.get(web.url + "/api/state") as response:
        assert (await response.json())["principal"] == "owner"


async def test_the_form_works_without_script(web: Web) -> None:
    async with web.client.post(web.url + "/login", data={"key": "ha-owner"}, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")
    async with web.client.post(web.url + "/login", data={"key": "wrong"}, allow_redirects=False) as response:
        assert response.status == 401


@pytest.mark.parametrize("body", [{}, {"key": ""}, {"key": 5}, {"key": None}])
async def test_a_login_without_key_is_refused(web: Web, body: dict[str, object]) -> None:
    async with web.client.post(web.url + "/login", json=body) as response:
        assert response.status == 400


async def test_logging_out_takes_the_cookie_back(web: Web) -> None:
    await web.log_in()
    async with web.client.post(web.url + "/api/logout", json={}) as response:
        assert response.status == 200
    async with web.client.get(web.url + "/api/state") as response:
        assert response.status == 401


async def test_a_login_outlives_a_restart_of_the_plugin(tmp_path: Path) -> None:
    kernel = FakeKernel()
    async with aiohttp.ClientSession(cookie_jar=unsafe_jar()) as client:
        async for web in running(kernel, tmp_path / "webui"):
            async with client.post(web.url + "/login", json={"key": "ha-owner"}) as response:
                assert response.status == 200
        async for web in running(kernel, tmp_path / "webui"):
            async with client.get(web.url + "/api/state") as response:
                assert response.status == 200
    assert stat.S_IMODE((tmp_path / "webui" / "cookie.secret").stat().st_mode) == 0o600


async def test_a_removed_key_ends_the_login(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.webui.identity.REMEMBERED_S", 0.0)
    await web.log_in()
    del web.kernel.keys["ha-owner"]
    async with web.client.get(web.url + "/api/state") as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "not_logged_in"


async def test_a_wrong_key_is_refused_and_the_tenth_time_the_address_waits(web: Web) -> None:
    for number in range(10):
        async with web.chat(f"ha-wrong-{number}", say="hi") as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
    async with web.chat("ha-wrong", say="hi") as response:
        assert response.status == 429
        assert 0 < int(response.headers["Retry-After"]) <= 60


async def test_a_known_key_still_works_from_an_address_that_has_to_wait(web: Web) -> None:
    await web.answer(say="hi")
    for number in range(11):
        async with web.chat(f"ha-wrong-{number}", say="hi") as response:
            await response.read()
    await web.answer(say="hi")


async def test_a_program_with_a_removed_key_does_not_lock_its_address_out(web: Web) -> None:
    for _ in range(20):
        async with web.chat("ha-removed", say="hi") as response:
            assert response.status == 401
    await web.log_in()


async def test_a_refused_key_is_asked_for_again_after_a_while() -> None:
    clock, kernel = Clock(), Kernel()
    ring = KeyRing(kernel.authenticate, AttemptLimiter(clock), clock)
    for _ in range(2):
        with pytest.raises(Refused):
            await ring.principal("late", "a")
    assert kernel.asked == 1
    kernel.keys.add("late")
    clock.now += REFUSED_S
    assert (await ring.principal("late", "a")).principal == "late"


async def test_a_missing_key_is_told_how_to_send_it(web: Web) -> None:
    for headers in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer "}):
        async with web.client.get(web.url + "/v1/models", headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert "Bearer" in (await response.json())["error"]["message"]


async def test_a_key_is_asked_for_once_in_a_while_only(live: Web) -> None:
    assert isinstance(live.kernel, LiveKernel)
    for _ in range(5):
        async with live.client.get(live.url + "/v1/models", headers={"Authorization": "Bearer ha-owner"}) as response:
            assert response.status == 200
    assert live.kernel.authentications == 1


async def test_what_the_kernel_said_of_a_key_is_remembered_for_half_a_minute() -> None:
    clock, kernel = Clock(), Kernel("good")
    ring = KeyRing(kernel.authenticate, AttemptLimiter(clock), clock)
    await ring.principal("good", "a")
    kernel.keys.clear()
    clock.now += REMEMBERED_S - 1
    assert (await ring.principal("good", "a")).principal == "good"
    clock.now += 2
    with pytest.raises(Refused):
        await ring.principal("good", "a")
    assert kernel.asked == 2


async def test_keys_and_addresses_are_remembered_in_tables_that_end() -> None:
    clock, kernel = Clock(), Kernel(*(f"k{number}" for number in range(300)))
    limiter = AttemptLimiter(clock)
    ring = KeyRing(kernel.authenticate, limiter, clock)
    for number in range(300):
        await ring.principal(f"k{number}", "a")
    assert len(ring._remembered) == 256
    for number in range(2000):
        limiter.failed(f"address {number}")
    assert len(limiter._failures) == 1024


async def test_an_address_may_try_again_after_a_minute() -> None:
    clock, limiter = Clock(), AttemptLimiter()
    limiter = AttemptLimiter(clock)
    for _ in range(10):
        limiter.check("a")
        limiter.failed("a")
    with pytest.raises(Refused):
        limiter.check("a")
    limiter.check("b")
    clock.now += 61
    limiter.check("a")


@pytest.mark.parametrize("key", ["é", "x" * 513, "\ud800"])
async def test_what_cannot_be_a_key_is_not_asked_for(key: str) -> None:
    kernel = Kernel()
    with pytest.raises(Refused):
        await KeyRing(kernel.authenticate, AttemptLimiter()).principal(key, "a")
    assert kernel.asked == 0


def test_a_cookie_ends_after_thirty_days_and_cannot_be_changed() -> None:
    seal = Seal(b"s" * 32)
    cookie = seal.cookie("ha-key", 1000.0)
    assert seal.key_of(cookie, 1000.0 + COOKIE_S) == "ha-key"
    assert seal.key_of(cookie, 1001.0 + COOKIE_S) is None
    assert Seal(b"t" * 32).key_of(cookie, 1000.0) is None
    for at in range(len(cookie)):
        changed = cookie[:at] + ("A" if cookie[at] != "A" else "B") + cookie[at + 1 :]
        assert seal.key_of(changed, 1000.0) in (None, "ha-key")
    for broken in ("", "x", "é", "A" * 200, cookie[:-4]):
        assert seal.key_of(broken, 1000.0) is None


def test_a_ticket_is_good_for_one_turn_of_one_principal() -> None:
    seal = Seal(b"s" * 32)
    ticket = seal.ticket("owner", "t1")
    assert seal.turn_of("owner", ticket) == "t1"
    assert seal.turn_of("member", ticket) is None
    assert seal.turn_of("owner", ticket.replace("t1", "t2")) is None
    for broken in ("", ".", "t1", "t1.", "t1.é"):
        assert seal.turn_of("owner", broken) is None


def test_a_damaged_secret_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    secret = load_secret(path)
    assert len(secret) == 32
    assert load_secret(path) == secret
