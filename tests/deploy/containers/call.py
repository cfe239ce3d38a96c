"""Calls one method of the bus as the operator: METHOD BODY, where BODY is JSON. Runs inside the kernel's container."""

import asyncio
import json
import os
import sys

from homeagent_sdk.bus import Credential, Peer
from homeagent_sdk.logging import be_quiet
from homeagent_sdk.paths import DataDir


async def _call(method: str, body: object) -> object:
    data = DataDir(os.environ["HOMEAGENT_DATA_DIR"])
    credential = Credential.from_key_file(f"operator-test-{os.getpid()}", data.key_file("operator"))
    peer = Peer(data.run, credential)
    await peer.start(10)
    try:
        return await peer.call(method, body, timeout_s=30)
    finally:
        await peer.stop()


be_quiet()
print(json.dumps(asyncio.run(_call(sys.argv[1], json.loads(sys.argv[2])))))
