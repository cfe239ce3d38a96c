from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Denied, Invalid
from homeagent_sdk.plugin.runtime import StartFailed
from homeagent_sdk.testing import FakeKernel
from plugins.webui.main import build
from plugins.webui.server import checked_address
from tests.plugins.webui.conftest import FOLDER, Web, running


async def start_fails(tmp_path: Path, **settings: Any) -> str:
    kernel = FakeKernel()
    kernel.settings["webui"] = {"port": 0, **settings}
    with pytest.raises(StartFailed) as caught:
        async with kernel.run(build(), FOLDER, tmp_path / "webui"):
            pass
    assert not (tmp_path / "webui" / "address").exists()
    return str(caught.value)


async def test_the_address_is_told_in_a_file_as_long_as_it_listens(tmp_path: Path) -> None:
    async for web in running(FakeKernel(), tmp_path / "webui"):
        assert web.url.startswith("http://127.0.0.1:")
        async with web.client.get(web.url + "/healthz") as response:
            assert response.status == 200
    assert not (tmp_path / "webui" / "address").exists()


async def test_a_port_in_use_is_told_plainly(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        reason = await start_fails(tmp_path, port=port)
    assert f"the port {port} on 127.0.0.1 is in use" in reason
    assert "plugin.webui.port" in reason


async def test_others_may_only_reach_it_if_someone_agreed(tmp_path: Path) -> None:
    assert "plugin.webui.public_bind" in await start_fails(tmp_path, addr="0.0.0.0")


async def test_an_address_of_another_machine_is_told_plainly(tmp_path: Path) -> None:
    assert "192.0.2.1" in await start_fails(tmp_path, addr="192.0.2.1", public_bind=True)


async def test_a_port_that_cannot_be_is_told_plainly(tmp_path: Path) -> None:
    assert "70000" in await start_fails(tmp_path, port=70000)


async def test_a_database_that_cannot_be_used_is_told_plainly(tmp_path: Path) -> None:
    (tmp_path / "webui").mkdir()
    (tmp_path / "webui" / "webui.db").write_bytes(b"no database" * 1000)
    assert "webui.db" in await start_fails(tmp_path)


@pytest.mark.parametrize("addr", ["127.0.0.1", "localhost", "::1", "127.0.0.5"])
def test_loopback_needs_no_consent(addr: str) -> None:
    assert checked_address(addr, False).is_loopback


@pytest.mark.parametrize("addr", ["0.0.0.0", "::", "192.168.1.5"])
def test_everything_else_needs_consent(addr: str) -> None:
    with pytest.raises(Denied):
        checked_address(addr, False)
    assert not checked_address(addr, True).is_loopback


def test_a_name_is_no_address() -> None:
    with pytest.raises(Invalid):
        checked_address("example.com", True)


async def test_health_is_told_to_everyone_with_names_and_states_only(web: Web) -> None:
    for path in ("/healthz", "/health"):
        async with web.client.get(web.url + path) as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with web.client.get(web.url + "/readyz") as response:
        ready = await response.json()
        assert response.status == 200
    assert ready["ready"]
    assert {"name": "memory", "state": "running"} in ready["services"]
    assert {"name": "webui", "state": "running"} in ready["plugins"]
    assert all(entry.keys() == {"name", "state"} for entry in ready["services"] + ready["plugins"])


async def test_details_are_told_to_whom_is_known(web: Web) -> None:
    async with web.client.get(web.url + "/readyz", headers={"Authorization": "Bearer ha-owner"}) as response:
        assert "detail" in (await response.json())["services"][0]
    async with web.client.get(web.url + "/readyz", headers={"Authorization": "Bearer wrong"}) as response:
        assert "detail" not in (await response.json())["services"][0]


async def test_what_is_not_up_is_not_ready(web: Web) -> None:
    async def status(body: Any, call: Any) -> dict[str, Any]:
        return {"ready": False, "services": [{"name": "memory_service", "state": "restarting"}], "plugins": []}

    web.kernel.peer.serve("kernel.status", status)
    async with web.client.get(web.url + "/readyz") as response:
        assert response.status == 503
        assert (await response.json())["services"] == [{"name": "memory_service", "state": "restarting"}]


async def test_a_kernel_that_does_not_answer_is_not_ready_but_the_plugin_is_alive(web: Web) -> None:
    await web.kernel.peer.stop()
    async with web.client.get(web.url + "/readyz") as response:
        assert response.status == 503
        assert (await response.json())["services"] == [{"name": "kernel", "state": "unavailable"}]
    async with web.client.get(web.url + "/healthz") as response:
        assert response.status == 200
