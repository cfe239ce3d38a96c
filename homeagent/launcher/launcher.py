"""The whole of ``homeagent up``, from the first check to the last file removed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from homeagent.client import listens, open_peer
from homeagent.exit_codes import CONFIGURATION, FAILED, OK, exit_code_of
from homeagent.launcher import announcer, key_files, personal_file, preflight, record
from homeagent.launcher.options import DEFAULT_PORT, Options
from homeagent.launcher.progress import Progress
from homeagent.launcher.service import ServiceSpec
from homeagent.launcher.supervisor import Supervisor
from homeagent.overview import SERVICES, Overview
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, TimedOut, Unavailable
from homeagent_sdk.paths import DataDir
from homeagent_sdk.secrets import take_from_environment

if TYPE_CHECKING:
    from homeagent_sdk.bus import BusPeer

SECRET_NAMES = ("HOMEAGENT_API_KEY", "HOMEAGENT_LLM_API_KEY")
STOP_ORDER = ("plugin_host", "provider_service", "memory_service", "kernel")
"""First what brings work in, last what the others speak through."""

_STOP_WITHIN_S = {"plugin_host": 3.0, "provider_service": 1.5, "memory_service": 2.0, "kernel": 2.0}
_HELLO_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 5.0
_SOCKET_EVERY_S = 0.02
_AGAIN_S = 0.5


def up(options: Options) -> int:
    """Run the system until it is told to stop, and return the exit code.

    Executes this program again if a secret is in the environment; see :mod:`homeagent_sdk.secrets`.
    """
    progress = Progress()
    try:
        secrets = take_from_environment(SECRET_NAMES)
        preflight.check_python()
        data = DataDir(options.data_dir).create()
        lock = preflight.lock(data)
        preflight.check_disk(data.root, progress.tell)
        port = _check_port(options, data)
        key_files.create_key_files(data.keys)
    except (HomeAgentError, OSError) as error:
        progress.tell(text("command.error", message=error))
        return CONFIGURATION if isinstance(error, Unavailable) else exit_code_of(error)
    launcher = Launcher(data, service_specs(data, port, options.overrides, secrets), progress, port=port)
    launcher.shows_first_key = "HOMEAGENT_API_KEY" not in secrets
    try:
        return asyncio.run(launcher.run())
    finally:
        os.close(lock)


def _check_port(options: Options, data: DataDir) -> int | None:
    address = "127.0.0.1"
    for override in options.overrides:
        key, _, value = override.partition("=")
        address = value if key == "plugin.webui.addr" else address
    if options.port is not None:
        return preflight.check_port(address, options.port)
    if not (data.kernel / "config.db").exists():
        # The first start: nobody can have chosen another port yet.
        preflight.check_port(address, DEFAULT_PORT)
    return None


def service_specs(
    data: DataDir, port: int | None, overrides: Sequence[str], secrets: Mapping[str, str]
) -> list[ServiceSpec]:
    """Describe the four services. Each gets the secrets that are its own, and no other."""
    settings = list(overrides) if port is None else [f"plugin.webui.port={port}", *overrides]
    arguments = {"kernel": [part for setting in settings for part in ("--set", setting)]}
    owns = {"kernel": "HOMEAGENT_API_KEY", "provider_service": "HOMEAGENT_LLM_API_KEY"}
    return [
        ServiceSpec.module(
            name,
            "--data-dir",
            str(data.root),
            *arguments.get(name, ()),
            stop_within_s=_STOP_WITHIN_S[name],
            secrets={key: value for key, value in secrets.items() if owns.get(name) == key},
        )
        for name in ("kernel", "plugin_host", "memory_service", "provider_service")
    ]


class Launcher:
    """One run of the system.

    :param port: of the web interface; None if the configuration has it
    :param connect: gives a started peer of the bus; by default the operator's
    """

    def __init__(
        self,
        data: DataDir,
        specs: Sequence[ServiceSpec],
        progress: Progress,
        *,
        port: int | None = None,
        connect: Callable[[], Awaitable[BusPeer]] | None = None,
    ) -> None:
        self.shows_first_key = True
        """Whether to make the owner's first key, and show it."""
        self._data = data
        self._specs = specs
        self._progress = progress
        self._port = port
        self._connect = connect or self._operator
        self._address: str | None = None
        self._stopping = asyncio.Event()
        self._impatient = asyncio.Event()

    async def run(self) -> int:
        """Start everything, keep it running until a signal comes, and stop it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._told_to_stop)
        self._supervisor = Supervisor(
            self._specs,
            environment=_child_environment(),
            log_dir=self._data.log,
            changed=self._write_record,
            tell=self._tell,
        )
        self._supervisor.start()
        _configure_log(self._data)
        announcing = asyncio.create_task(self._announce())
        try:
            code = await self._until_stopped(announcing)
        finally:
            announcing.cancel()
            with suppress(asyncio.CancelledError):
                await announcing
            await self._stop()
        return FAILED if self._impatient.is_set() else code

    async def _until_stopped(self, announcing: asyncio.Task[None]) -> int:
        stopping = asyncio.create_task(self._stopping.wait())
        waits: set[asyncio.Future[Any]] = {stopping, announcing, self._supervisor.refused}
        while not stopping.done():
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self._supervisor.refused.done():
                stopping.cancel()
                error = self._supervisor.refused.result()
                self._progress.tell(text("command.error", message=error))
                return exit_code_of(error)
            if announcing.done():
                announcing.result()
                waits.discard(announcing)
        return OK

    async def _announce(self) -> None:
        while True:
            try:
                overview = await self._wait_and_inform()
                break
            except HomeAgentError as error:
                # The kernel went away between two questions; it is being started again.
                self._progress.tell(text("command.warning", message=error))
                await asyncio.sleep(_AGAIN_S)
        self._supervisor.was_ready = True
        self._write_record()
        if overview.is_complete:
            self._progress.tell(text("command.up_ready", address=self._address))
        else:
            names = ", ".join(part.name for part in overview.waiting_for)
            self._progress.tell(text("command.up_ready_without", address=self._address, names=names))
        # Whoever was to read the line may be gone; the system runs all the same.
        with suppress(OSError):
            sys.stdout.write(f"ready {self._address}\n")
            sys.stdout.flush()

    async def _wait_and_inform(self) -> Overview:
        """Wait until the system is up, and tell what its owner has to know before the first message."""
        peer = await self._connect()

        async def call(method: str, body: dict[str, Any]) -> Any:
            return await peer.call(method, body, timeout_s=_CALL_TIMEOUT_S)

        try:
            overview = await announcer.wait_until_up(call, self._progress)
            self._address = await announcer.web_address(call, self._port)
            if self.shows_first_key:
                await self._tell_first_key(call)
            await self._tell_model(call)
            persona_notice = await personal_file.import_personal_file(call, self._data)
            if persona_notice is not None:
                self._progress.tell(persona_notice)
            return overview
        finally:
            await peer.stop()

    async def _operator(self) -> BusPeer:
        """Connect to the kernel, however long it takes to come up."""
        while True:
            self._progress.waiting_for(SERVICES)
            # A connection is tried when there is something to connect to: the retries of the bus grow slower.
            if not listens(self._data.run / "control.sock"):
                await asyncio.sleep(_SOCKET_EVERY_S)
                continue
            peer = open_peer(self._data)
            try:
                await peer.start(_HELLO_TIMEOUT_S)
            except TimedOut:
                continue
            return peer

    async def _tell_first_key(self, call: announcer.Call) -> None:
        key = await announcer.first_key(call)
        if key is not None:
            self._progress.tell(text("command.up_first_key", key=key))

    async def _tell_model(self, call: announcer.Call) -> None:
        try:
            notice = await announcer.model_notice(call)
        except HomeAgentError as error:
            # Only a remark: the key above has been shown, and is not to be made again.
            notice = text("command.warning", message=error)
        if notice is not None:
            self._progress.tell(notice)

    def _tell(self, line: str) -> None:
        """Tell the person, and the log: what happens to services is asked about days later."""
        from homeagent_sdk.logging import get_logger

        self._progress.tell(line)
        get_logger("supervisor").info(line)

    def _told_to_stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._progress.tell(text("command.up_stopping"))
            return
        self._impatient.set()

    async def _stop(self) -> None:
        """Stop in order; kill at once when told a second time."""
        orderly = asyncio.create_task(self._supervisor.stop(STOP_ORDER))
        impatient = asyncio.create_task(self._impatient.wait())
        await asyncio.wait({orderly, impatient}, return_when=asyncio.FIRST_COMPLETED)
        impatient.cancel()
        if not orderly.done():
            orderly.cancel()
            with suppress(asyncio.CancelledError):
                await orderly
            await self._supervisor.kill()
        self._remove_files()
        self._progress.done()

    def _remove_files(self) -> None:
        """Remove what only a running system has: its record, and sockets of services that were killed."""
        for path in (record.record_path(self._data), *self._data.run.glob("*.sock")):
            path.unlink(missing_ok=True)

    def _write_record(self) -> None:
        try:
            record.write_record(self._data, self._supervisor, self._port, self._address)
        except OSError as error:
            # A full disk: other commands know less for a while, but the services are kept running.
            self._progress.tell(text("command.warning", message=error))


def _configure_log(data: DataDir) -> None:
    """Set up the launcher's own log; only now, since the services need not wait for the libraries that it takes."""
    from homeagent_sdk.logging import configure

    configure("launcher", data.root, show=False)


def _child_environment() -> dict[str, str]:
    """Return the environment of the services: this one, with one thread for numeric libraries, and no secrets."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRET_NAMES}
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment
