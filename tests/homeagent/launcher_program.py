"""Runs a launcher with fake services and a bus in memory. Arguments: DATA_DIR JOURNAL NAME=HOW ...

``kernel.status`` answers what ``status.json`` in the data directory says, so that a test decides when all is up.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from homeagent.launcher import launcher as launching
from homeagent.launcher import preflight
from homeagent.launcher.launcher import STOP_ORDER, Launcher
from homeagent.launcher.progress import Progress
from homeagent.launcher.service import ServiceSpec
from homeagent_sdk.bus.abc import BusPeer, CallContext
from homeagent_sdk.paths import DataDir
from homeagent_sdk.testing import LocalBus

SERVICE = Path(__file__).with_name("fake_service.py")


class FakeKernel:
    """As much of a kernel as a launcher asks for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus = LocalBus()
        kernel, provider = self.bus.peer("kernel", "kernel"), self.bus.peer("provider")
        kernel.serve("kernel.status", self.status)
        kernel.serve("kernel.principal_list", self.principals)
        kernel.serve("kernel.key_new", self.new_key)
        kernel.serve("kernel.config_get", self.setting)
        provider.serve("provider.sources", self.sources)

    async def connect(self) -> BusPeer:
        return self.bus.peer("operator-1", "operator")

    async def status(self, _: Any, __: CallContext) -> Any:
        return json.loads(await asyncio.to_thread((self.folder / "status.json").read_text))

    async def principals(self, _: Any, __: CallContext) -> Any:
        keys = len(list(self.folder.glob("key.made")))
        return {"principals": [{"principal": "owner", "name": "owner", "role": "owner", "created": 0, "keys": keys}]}

    async def new_key(self, body: Any, __: CallContext) -> Any:
        (self.folder / "key.made").touch(exist_ok=False)
        return {"key": f"ha-key-of-{body['principal']}"}

    async def setting(self, body: Any, __: CallContext) -> Any:
        return {"key": body["key"], "value": {"plugin.webui.addr": "127.0.0.1", "plugin.webui.port": 8080}[body["key"]]}

    async def sources(self, _: Any, __: CallContext) -> Any:
        return {"sources": [{"name": "embedded", "model": "tiny", "embedded": True, "state": "ready"}]}


def main() -> int:
    data = DataDir(sys.argv[1]).create()
    lock = preflight.lock(data)
    how = dict(argument.split("=") for argument in sys.argv[3:])
    specs = [
        ServiceSpec(
            name,
            (sys.executable, str(SERVICE), name, how.get(name, "well"), sys.argv[2]),
            stop_within_s=0.3,
            secrets={"HOMEAGENT_API_KEY": "ha-secret"} if how.get(name) == "secret" else {},
        )
        for name in reversed(STOP_ORDER)
    ]
    launching._AGAIN_S = 0.05
    launcher = Launcher(data, specs, Progress(), port=None, connect=FakeKernel(data.root).connect)
    assert lock
    return asyncio.run(launcher.run())


sys.exit(main())
