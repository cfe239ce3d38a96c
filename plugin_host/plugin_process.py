"""The process of one plugin, from the fork to its end."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import structlog

from homeagent_sdk.bus import Credential, Peer, TokenChannel
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Invalid
from homeagent_sdk.logging import mask
from homeagent_sdk.paths import DataDir
from homeagent_sdk.plugin import Plugin
from homeagent_sdk.plugin.manifest import Manifest, read_manifest
from homeagent_sdk.plugin.runtime import PluginRuntime
from homeagent_sdk.process import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK, prefer_as_oom_victim
from plugin_host.launch import PLUGIN_MARK, Launch
from plugin_host.loader import load_plugin
from plugin_host.system import set_process_name, signal_when_parent_dies, wait_for_parent

_CHANNEL = 3
"""The descriptor on which a plugin process finds its line to the supervisor."""

_OPEN_FILES = 4096
_DATA_BYTES = 2 * 1024**3
_OOM_SCORE = 500
_EXTERNAL_NICENESS = 5
_LONG_S = 365 * 86400.0


def become_plugin(launch: Launch, channel: int, stdout: int, stderr: int) -> NoReturn:
    """Turn this fresh fork of the zygote into the process of a plugin; it ends with the plugin."""
    code = EXIT_FAILED
    try:
        _settle(launch, channel, stdout, stderr)
        code = _run(launch)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # Not sys.exit: a thread that hangs must not keep the process, and the zygote's exit handlers are not ours.
            os._exit(code)


def _settle(launch: Launch, channel: int, stdout: int, stderr: int) -> None:
    """Take leave of the zygote: own session, own descriptors, own limits, and an end with the supervisor."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The parent now is the process between zygote and here; its end must not be taken for the supervisor's.
    if not wait_for_parent(launch.supervisor_pid):
        os._exit(EXIT_FAILED)
    signal_when_parent_dies(signal.SIGKILL)
    if os.getppid() != launch.supervisor_pid:
        os._exit(EXIT_FAILED)
    _take_descriptors(channel, stdout, stderr)
    set_process_name(launch.name)
    _limit(launch)
    os.environ[PLUGIN_MARK] = launch.mark
    os.chdir(launch.folder)
    random.seed()
    gc.enable()


def _take_descriptors(channel: int, stdout: int, stderr: int) -> None:
    """Put the three descriptors where they belong and close all others, the zygote's own among them."""
    above = max(channel, stdout, stderr, _CHANNEL) + 1
    moved = [above + offset for offset in range(4)]
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in zip((null, stdout, stderr, channel), moved, strict=True):
        os.dup2(source, target)
    for number, source in enumerate(moved):
        os.dup2(source, number, inheritable=number != _CHANNEL)
    os.closerange(_CHANNEL + 1, max(1024, above + 8))


def _limit(launch: Launch) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _lower(resource.RLIMIT_DATA, _DATA_BYTES)
    prefer_as_oom_victim(_OOM_SCORE)
    if launch.tier == "external":
        os.nice(_EXTERNAL_NICENESS)


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _run(launch: Launch) -> int:
    """Load the plugin, then run it; an import that fails is told to the supervisor in a line."""
    _log_to_stderr(f"plugin-{launch.name}")
    folder = Path(launch.folder)
    try:
        manifest = read_manifest(folder)
        plugin = load_plugin(folder, manifest)
    except HomeAgentError as error:
        return _report_failure(str(error))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return _report_failure(text("host.import_failed", error=f"{type(error).__name__}: {error}"))
    return asyncio.run(_live(launch, plugin, manifest))


def _report_failure(reason: str) -> int:
    """Tell the supervisor, before there is an event loop, that trying again is of no use."""
    line = json.dumps({"state": "failed", "reason": reason[:1000]}).encode() + b"\n"
    with socket.socket(fileno=os.dup(_CHANNEL)) as channel:
        channel.sendall(line)
    return EXIT_CONFIGURATION


async def _live(launch: Launch, plugin: Plugin, manifest: Manifest) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    data_dir = DataDir(launch.data_dir)
    channel = Credential.from_token_channel(_CHANNEL)
    await channel.open()
    runtime = PluginRuntime(
        plugin,
        manifest,
        data_dir.plugin_data / manifest.name,
        Peer(data_dir.run, channel),
        generation=launch.generation,
        welcome_timeout_s=_LONG_S,
    )
    start = asyncio.create_task(_start(runtime, channel))
    code = await _first_of(start, stopping, channel)
    if code is None:
        life = asyncio.create_task(_watch(runtime, channel))
        code = await _first_of(life, stopping, channel)
        await runtime.stop()
    return EXIT_OK if code is None else code


async def _first_of(work: asyncio.Task[int | None], stopping: asyncio.Event, channel: TokenChannel) -> int | None:
    """Wait for the work, for the order to stop (then 0) or for the end of the supervisor (then the process ends)."""
    told = asyncio.create_task(stopping.wait())
    gone = asyncio.create_task(channel.closed.wait())
    try:
        await asyncio.wait({work, told, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            os._exit(EXIT_FAILED)
        return await work if work.done() else EXIT_OK
    finally:
        for task in (work, told, gone):
            task.cancel()
        await asyncio.gather(work, told, gone, return_exceptions=True)


async def _start(runtime: PluginRuntime, channel: TokenChannel) -> int | None:
    """Start the plugin and report how that went; None if it runs."""
    try:
        await runtime.start()
    except Invalid as error:
        await channel.report("failed", str(error))
        return EXIT_CONFIGURATION
    except Exception as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        await channel.report("failed", str(error) or type(error).__name__)
        return EXIT_FAILED
    await channel.report("running")
    return None


async def _watch(runtime: PluginRuntime, channel: TokenChannel) -> int | None:
    """Wait until a later kernel refuses the plugin."""
    try:
        await runtime.wait_failed()
    except Exception as error:
        await channel.report("failed", str(error))
    return EXIT_FAILED


def _log_to_stderr(service: str) -> None:
    """Write the log as JSON lines to stderr, where the supervisor collects them, masks included."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=None, key="time"),
            structlog.processors.format_exc_info,
            _Masked(service),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=repr),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().handlers[:] = [handler]


class _Masked:
    """Adds the service's name and hides what looks like a secret."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(self, logger: Any, method: str, event: Any) -> Any:
        first = {key: event.pop(key, None) for key in ("time", "level")}
        masked: dict[str, Any] = mask({**first, "service": self._service, **event})
        return masked
