"""``python -m plugin_host``: reads the arguments, wires the parts, runs."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import os
import secrets
import sys
from pathlib import Path
from typing import IO

from homeagent_sdk import logging, process
from homeagent_sdk.bus import Credential, Peer
from homeagent_sdk.errors import Invalid
from homeagent_sdk.logging import get_logger
from homeagent_sdk.paths import DataDir
from plugin_host import orphans
from plugin_host.host import PluginHost
from plugin_host.roster import Folders
from plugin_host.sweeper import kill_all
from plugin_host.system import become_subreaper

_LONG_S = 365 * 86400.0
_OOM_SCORE = 100
_STOP_WITHIN_S = 5.0
_log = get_logger("plugin_host")


def main() -> int:
    """Run the plugin host until it is told to stop; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m plugin_host", description="Runs the plugins of HomeAgent.")
    parser.add_argument("--data-dir", type=Path, required=True, help="the agent's data directory")
    parser.add_argument("--plugins-dir", type=Path, help="the bundled plugins, if not those beside this package")
    arguments = parser.parse_args()
    data_dir = DataDir(arguments.data_dir)
    builtin = (arguments.plugins_dir or Path(__file__).parent.parent / "plugins").resolve()
    process.die_with_parent()
    return process.run(lambda stopping: _run(stopping, data_dir, builtin), stop_within_s=_STOP_WITHIN_S)


async def _run(stopping: asyncio.Event, data_dir: DataDir, builtin: Path) -> int:
    data_dir.create("plugins", "plugin_data", "log")
    logging.configure("plugin_host", data_dir.root)
    process.prefer_as_oom_victim(_OOM_SCORE)
    with _only_one(data_dir.plugins / ".host.lock"):
        become_subreaper()
        place = hashlib.sha256(os.fsencode(data_dir.root)).hexdigest()[:16]
        left = await asyncio.to_thread(kill_all, lambda: orphans.marked(f"{place}.", is_prefix=True))
        if left:
            _log.warning("killed what an earlier plugin host left behind", pids=left)
        peer = Peer(data_dir.run, Credential.from_key_file("host", data_dir.key_file("host")))
        host = PluginHost(peer, data_dir, Folders(builtin, data_dir.plugins), f"{place}.{secrets.token_hex(8)}")
        await host.start()
        try:
            await _take_part(peer, stopping)
        finally:
            await host.stop()
            await peer.stop()
    return process.EXIT_OK


async def _take_part(peer: Peer, stopping: asyncio.Event) -> None:
    """Stay on the bus until told to stop; a refusal by the kernel ends the host.

    :raises Denied: the kernel refused this process
    """
    told = asyncio.create_task(stopping.wait())
    start = asyncio.create_task(peer.start(_LONG_S))
    try:
        await asyncio.wait({told, start}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            await start
            await told
    finally:
        for task in (told, start):
            task.cancel()
        await asyncio.gather(told, start, return_exceptions=True)


def _only_one(path: Path) -> IO[str]:
    """Take the lock of this data directory's plugin host, held until the file is closed.

    :raises Invalid: another plugin host has it
    """
    file = open(path, "w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Invalid(
            f"another plugin host runs in this data directory ({path} is locked)",
            hint="stop it first: `homeagent down`",
        ) from None
    return file


if __name__ == "__main__":
    sys.exit(main())
