"""``python -m provider_service --data-dir D``: wires the service together and runs it until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from typing import TYPE_CHECKING

from homeagent_sdk.errors import Invalid
from homeagent_sdk.secrets import take_from_environment

if TYPE_CHECKING:
    from homeagent_sdk.bus import Peer
    from homeagent_sdk.paths import DataDir
    from provider_service.service import ProviderService

PEER = "provider"
ENVIRONMENT_KEY = "HOMEAGENT_LLM_API_KEY"
_WAIT_FOR_KERNEL_S = 86_400.0


def main() -> int:
    """Run the service; returns the exit code."""
    # The rest is imported once this program no longer has to be executed again.
    try:
        secrets = take_from_environment([ENVIRONMENT_KEY])
    except Invalid as error:
        sys.stderr.write(f"{error}\n")
        return 3
    from homeagent_sdk import process
    from homeagent_sdk.paths import DataDir

    process.die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m provider_service", description="The provider service.")
    parser.add_argument("--data-dir", required=True, help="the data directory that all services share")
    data = DataDir(parser.parse_args().data_dir)
    os.umask(0o077)
    # A memory dump would hold the keys.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return process.run(lambda stopping: _run(data, secrets, stopping))


async def _run(data: DataDir, secrets: dict[str, str], stopping: asyncio.Event) -> None:
    import structlog

    from homeagent_sdk import logging
    from homeagent_sdk.bus import Credential, Peer
    from homeagent_sdk.confine import confine, import_roots, standard_read_only
    from provider_service.service import BUNDLED_ADAPTERS, ProviderService

    data.create("provider", "log")
    logging.configure("provider_service", data.root)
    credential = Credential.from_key_file(PEER, data.key_file(PEER))
    # Before the first thread: it binds only this one and those that it starts. The log's starts with its first line.
    confinement = confine(
        read_write=[data.provider, data.log, data.run],
        read_only=[*standard_read_only("provider_service"), BUNDLED_ADAPTERS, data.key_file(PEER)],
        listable=import_roots("provider_service"),
        tcp=True,
    )
    peer = Peer(data.run, credential)
    service = ProviderService(peer, data.provider, environ=os.environ, secrets=secrets)
    service.serve()
    try:
        await service.start()
        structlog.get_logger("provider_service").info("started", confinement=confinement.to_dict())
        await _take_part(peer, service, stopping)
    finally:
        await peer.stop()
        await service.stop()


async def _take_part(peer: Peer, service: ProviderService, stopping: asyncio.Event) -> None:
    """Be on the bus until told to stop; a kernel that is not there yet is waited for."""
    told = asyncio.create_task(stopping.wait())
    started = asyncio.create_task(peer.start(timeout_s=_WAIT_FOR_KERNEL_S))
    try:
        await asyncio.wait({told, started}, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
            await service.subscribe()
            await told
    finally:
        for task in (told, started):
            task.cancel()
        await asyncio.gather(told, started, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
