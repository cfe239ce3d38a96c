"""``python -m memory_service --data-dir D``: wires the service together and runs it until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from homeagent_sdk import logging, process
from homeagent_sdk.bus import Credential, Peer
from homeagent_sdk.confine import Confinement, confine, import_roots, standard_read_only
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir
from memory_service.encoders.client import EncoderWorker
from memory_service.operating import Operating
from memory_service.service import MemoryService
from memory_service.store.sqlite import SqliteStore
from memory_service.vectors.keeper import VectorKeeper
from memory_service.words.segmenter import Segmenter

PEER = "memory"
_PRELOAD_AFTER_S = 5.0
_WAIT_FOR_KERNEL_S = 86_400.0
_log = logging.get_logger("memory_service")


def main() -> int:
    """Run the service; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m memory_service", description="The memory service of HomeAgent.")
    parser.add_argument("--data-dir", required=True, help="the data directory that all services share")
    data = DataDir(parser.parse_args().data_dir)
    process.die_with_parent()
    # The writing thread takes the interpreter's lock a dozen times for a turn, beside what the loop has to do.
    process.lower_switch_interval()
    os.umask(0o077)
    return process.run(lambda stopping: _run(data, stopping))


async def _run(data: DataDir, stopping: asyncio.Event) -> None:
    data.create("memory", "log")
    logging.configure("memory_service", data.root)
    credential = Credential.from_key_file(PEER, data.key_file(PEER))
    # Before the first thread: it binds only this one and those that it starts. The log's starts with its first line.
    confinement = _confine(data)
    store = SqliteStore.open(data.memory / "memory.db")
    try:
        peer = Peer(data.run, credential)
        segmenter = Segmenter(data.memory / "cache")
        encoder = EncoderWorker(data.memory / "cache")
        keeper = VectorKeeper(store.vectors, encoder)
        service = MemoryService(peer, store, segmenter, keeper)
        operating = Operating(peer, store, data.memory)
        service.on_stored(operating.wake)
        operating.on_imported(keeper.notify)
        operating.on_forgotten(keeper.forget)
        service.serve()
        operating.serve()
        _log.info("memory opened", confinement=confinement.to_dict(), path=str(data.memory / "memory.db"))
        keeping = asyncio.create_task(keeper.run(), name="vectors")
        try:
            async with operating:
                await _serve(peer, segmenter, stopping)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await encoder.close()
    finally:
        await store.close()


async def _serve(peer: Peer, segmenter: Segmenter, stopping: asyncio.Event) -> None:
    """Take part in the bus until told to stop; a kernel that is not there yet is waited for."""
    told = asyncio.create_task(stopping.wait())
    started = asyncio.create_task(peer.start(timeout_s=_WAIT_FOR_KERNEL_S))
    preload = asyncio.create_task(_preload(segmenter))
    try:
        await asyncio.wait({told, started}, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            started.result()
            await told
    finally:
        for task in (told, started, preload):
            task.cancel()
        await asyncio.gather(told, started, preload, return_exceptions=True)
        await peer.stop()


async def _preload(segmenter: Segmenter) -> None:
    """Load the dictionary when the start is over, so that the first Chinese question need not wait for it."""
    await asyncio.sleep(_PRELOAD_AFTER_S)
    try:
        await asyncio.to_thread(segmenter.load)
    except (OSError, ImportError, HomeAgentError) as error:
        _log.error("the Chinese dictionary cannot be loaded", error=str(error))


def _confine(data: DataDir) -> Confinement:
    return confine(
        read_write=[data.memory, data.log, data.run],
        read_only=[*standard_read_only("memory_service"), data.key_file(PEER)],
        listable=import_roots("memory_service"),
        tcp=False,
    )


if __name__ == "__main__":
    sys.exit(main())
