"""Listens on the socket, and lets nobody in but the user it belongs to."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from pathlib import Path
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Denied, HomeAgentError, Overloaded, Unavailable
from homeagent_sdk.paths import short_socket_path
from homeagent_sdk.plugin import Plugin

from .connection import Connection
from .lines import format_line

CLIENTS = 32

_BACKLOG = 64
_CREDENTIALS = struct.Struct("3i")
_STREAM_LIMIT_BYTES = 128 * 1024


class SocketServer:
    """The socket ``chat.sock`` in the plugin's folder. A second one that starts takes its place at once."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._path = plugin.data_dir / "chat.sock"
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen.

        :raises Unavailable: the socket cannot be made
        """
        try:
            listening = await asyncio.to_thread(_bind, self._path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unavailable(text("cli.no_socket", path=self._path, reason=reason)) from error
        self._server = await asyncio.start_unix_server(self._on_client, sock=listening, limit=_STREAM_LIMIT_BYTES)
        self._plugin.log.info("listening", path=str(self._path))

    async def stop(self) -> None:
        """Let all clients go and remove the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.to_thread(self._path.unlink, missing_ok=True)
        for task in list(self._connections.values()):
            task.cancel()
        await asyncio.gather(*self._connections.values(), return_exceptions=True)

    def push(self, conversation: str, item: dict[str, Any]) -> int:
        """Send to all clients of a conversation; return how many there were."""
        return sum(connection.push(conversation, item) for connection in list(self._connections))

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            check_owner(writer.get_extra_info("socket"))
            if len(self._connections) >= CLIENTS:
                raise Overloaded(text("cli.too_many_clients", limit=CLIENTS))
        except HomeAgentError as error:
            self._plugin.log.warning("a client was turned away", reason=error.message)
            await _turn_away(writer, error)
            return
        connection = Connection(self._plugin, reader, writer)
        task = asyncio.create_task(connection.run())
        self._connections[connection] = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            del self._connections[connection]
            if task.done() and not task.cancelled() and (failure := task.exception()):
                self._plugin.log.error("a connection failed", exc_info=failure)


def check_owner(connected: socket.socket) -> None:
    """Refuse a process of another user; the mode of the socket does so already, this is the second lock.

    :raises Denied: the process runs as somebody else, root excepted
    """
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid not in (os.getuid(), 0):
        raise Denied(text("cli.other_user", uid=uid), hint=text("cli.other_user_hint"))


async def _turn_away(writer: asyncio.StreamWriter, error: HomeAgentError) -> None:
    told = {"code": error.code, "message": error.message, "hint": error.hint, "field": error.field}
    try:
        writer.write(format_line({"type": "error", "error": told}))
        writer.close()
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except (ConnectionError, TimeoutError):
        writer.transport.abort()


def _bind(path: Path) -> socket.socket:
    """Make the socket beside its place, close it to others, and only then put it there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_socket_path(partial) as name:
            listening.bind(name)
        partial.chmod(0o600)
        listening.listen(_BACKLOG)
        partial.replace(path)
    except BaseException:
        listening.close()
        raise
    listening.setblocking(False)
    return listening
