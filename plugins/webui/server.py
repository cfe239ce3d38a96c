"""Puts the parts together and listens."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
from pathlib import Path
from typing import Any

from aiohttp import web

from homeagent_sdk.errors import Conflict, Denied, Invalid, Unavailable
from homeagent_sdk.plugin import Plugin

from .agent import Agent
from .guard import BODY_LIMIT_BYTES, Guard, add_headers
from .health import Health
from .history_index import HistoryIndex
from .identity import AttemptLimiter, KeyRing
from .live_pages import LivePages
from .login import Login
from .openai_api import OpenAiApi
from .page_api import PageApi
from .page_files import PageFiles, read_page_files
from .seal import Seal, load_secret
from .store import Store

_STATIC = Path(__file__).parent / "static"
_SHUTDOWN_S = 1.0


class Server:
    """The web server of the plugin. Reads the settings ``addr``, ``port`` and ``public_bind`` when it starts."""

    def __init__(self, plugin: Plugin) -> None:
        self.pages = LivePages(plugin.log)
        self.agent = Agent(plugin)
        self.address = ""
        """Where it listens, such as ``http://127.0.0.1:8080``."""
        self._plugin = plugin
        self._address_file = plugin.data_dir / "address"
        self._store = Store(plugin.data_dir / "webui.db", plugin.log)
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Open the database and listen; the address is written to the file ``address`` of the data directory.

        :raises Denied: the address can be reached by others, and nobody agreed to that
        :raises Invalid: the address or the port cannot be
        :raises Conflict: the port is in use
        :raises Unavailable: the database cannot be used
        """
        settings = self._plugin.settings
        address = checked_address(str(settings["addr"]), bool(settings["public_bind"]))
        await asyncio.to_thread(self._address_file.unlink, missing_ok=True)
        try:
            index = HistoryIndex(await self._store.open())
            app = await self._application(index, is_public=not address.is_loopback)
            self.address = await self._listen(app, str(address), int(settings["port"]))
            await asyncio.to_thread(_write_whole, self._address_file, self.address + "\n")
        except BaseException:
            await self.stop()
            raise
        self._plugin.log.info("listening", address=self.address)

    async def stop(self) -> None:
        """Stop listening, end the open streams and close the database."""
        self.pages.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
            await asyncio.to_thread(self._address_file.unlink, missing_ok=True)
        await self._store.close()

    async def _application(self, index: HistoryIndex, *, is_public: bool) -> web.Application:
        plugin = self._plugin
        seal = Seal(await asyncio.to_thread(load_secret, plugin.data_dir / "cookie.secret"))
        files = await asyncio.to_thread(read_page_files, _STATIC)
        keys = KeyRing(self.agent.authenticate, AttemptLimiter())
        login = Login(keys, seal)
        guard = Guard(plugin.log, lambda: str(plugin.settings["allowed_hosts"]), is_public)
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[guard.middleware])
        app.on_response_prepare.append(add_headers)
        parts: list[Any] = [
            OpenAiApi(self.agent, keys, index, self._store),
            PageApi(self.agent, login, seal, self.pages),
            Health(self.agent, login.anyone),
            PageFiles(files, login),
            login,
        ]
        for part in parts:
            part.add_routes(app)
        return app

    async def _listen(self, app: web.Application, host: str, port: int) -> str:
        if not 0 <= port <= 65535:
            raise Invalid(f"the port {port} cannot be", field="plugin.webui.port", hint="choose one of 1 to 65535")
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        bound_host, bound_port = self._runner.addresses[0][:2]
        return f"http://{_reachable(bound_host)}:{bound_port}"


def checked_address(addr: str, is_public_agreed: bool) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address to listen on.

    :raises Invalid: it is no IP address
    :raises Denied: others can reach it, and nobody agreed to that
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if addr.strip().lower() == "localhost" else addr.strip())
    except ValueError as error:
        hint = "give an IP address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
        raise Invalid(f"{addr!r} is no IP address to listen on", field="plugin.webui.addr", hint=hint) from error
    if not address.is_loopback and not is_public_agreed:
        raise Denied(
            f"other machines can reach {address}, and nobody has agreed to that",
            field="plugin.webui.public_bind",
            hint="set plugin.webui.public_bind to true if you mean it; give a key only to whom you trust",
        )
    return address


def _cannot_listen(host: str, port: int, error: OSError) -> Exception:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"the port {port} on {host} is in use by another program",
            field="plugin.webui.port",
            hint="stop that program, or choose another port with plugin.webui.port (homeagent up --port)",
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
        reason = os.strerror(error.errno)
        hint = "choose an address of this machine, and a port above 1023"
        return Invalid(f"cannot listen on {where}: {reason}", field="plugin.webui.addr", hint=hint)
    return Unavailable(f"cannot listen on {where}: {error.strerror or error}")


def _reachable(host: str) -> str:
    """Return the host for a link: one that listens everywhere is reached on this machine by loopback."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"


def _write_whole(path: Path, content: str) -> None:
    """Write a file so that a reader sees all of it or nothing."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(content, encoding="utf-8")
    partial.replace(path)
