"""A conversation with the agent over the Unix socket of the ``cli`` plugin: lines of JSON in both directions."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from homeagent.client import is_running, not_running
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Denied, HomeAgentError, Unavailable, from_wire
from homeagent_sdk.paths import DataDir, short_socket_path

_LINE_BYTES = 4 * 1024 * 1024
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0
RECONNECT_WITHIN_S = 30.0
"""How long a lost connection is tried again; the turn itself goes on without it."""

Item = dict[str, Any]


class ChatConnection:
    """Sends messages of one conversation and follows their answers.

    Every message has an identity of its own (``delivery_id``). So when the connection breaks, because the plugin or
    the kernel was restarted, the message is sent again, and what comes back is the answer to the first one.
    """

    def __init__(
        self,
        data: DataDir,
        conversation: str,
        *,
        options: Mapping[str, Any] | None = None,
        reconnect_within_s: float = RECONNECT_WITHIN_S,
    ) -> None:
        self.conversation = conversation
        self._data = data
        self._options = dict(options or {})
        self._within_s = reconnect_within_s

    @property
    def socket_path(self) -> Path:
        """Where the plugin listens."""
        return self._data.plugin_data / "cli" / "chat.sock"

    async def send(self, message: str) -> AsyncIterator[Item]:
        """Send a message and yield what becomes of it; the last item is the outcome.

        Besides the items of the turn there is ``{"type": "reconnected"}``: what came before is sent anew.

        :raises NotRunning: nothing runs here
        :raises Denied: this user may not talk to the agent
        :raises HomeAgentError: the message was refused
        :raises Unavailable: the connection broke and did not come back in time
        """
        request = {
            **self._options,
            "op": "send",
            "text": message,
            "conversation": self.conversation,
            "delivery_id": uuid.uuid4().hex,
        }
        loop = asyncio.get_running_loop()
        last_seen, delay = loop.time(), _FIRST_RETRY_S
        while True:
            try:
                async for item in self._follow(request):
                    last_seen, delay = loop.time(), _FIRST_RETRY_S
                    yield item
                    if item.get("type") == "outcome":
                        return
                raise ConnectionResetError(text("command.chat_closed"))
            except OSError as error:
                if not is_running(self._data):
                    raise not_running(self._data) from error
                if loop.time() - last_seen > self._within_s:
                    raise Unavailable(
                        text("command.chat_lost", seconds=int(self._within_s)), hint=text("command.chat_lost_hint")
                    ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_RETRY_S)
            yield {"type": "reconnected"}

    async def stop(self) -> bool:
        """Stop the turn that runs in this conversation; return whether there was one.

        :raises HomeAgentError: it could not be asked for
        """
        async for item in self._follow({"op": "stop", "conversation": self.conversation}):
            return bool(item.get("stopped"))
        return False

    async def listen(self) -> AsyncIterator[Item]:
        """Take part in the conversation without saying anything, and yield what comes there.

        :raises HomeAgentError: it was refused
        :raises OSError: the connection broke
        """
        async for item in self._follow({"op": "history", "conversation": self.conversation}):
            yield item

    async def _follow(self, request: Item) -> AsyncIterator[Item]:
        """Send one request on a connection of its own, and yield the answers until the other side closes."""
        async with self._connected() as (reader, writer):
            writer.write(json.dumps(request, ensure_ascii=False).encode() + b"\n")
            await writer.drain()
            while line := await reader.readline():
                if not line.endswith(b"\n"):
                    raise ConnectionResetError(text("command.chat_closed"))
                item: Item = json.loads(line)
                if item.get("type") == "error":
                    raise from_wire(item.get("error"))
                yield item

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            with short_socket_path(self.socket_path) as name:
                reader, writer = await asyncio.open_unix_connection(name, limit=_LINE_BYTES)
        except PermissionError as error:
            raise Denied(text("command.chat_denied", path=self.socket_path)) from error
        try:
            yield reader, writer
        finally:
            writer.close()


def error_of(outcome: Item) -> HomeAgentError | None:
    """Return the error with which a turn ended, if it did."""
    if outcome.get("outcome") != "error":
        return None
    return from_wire(outcome.get("error"))
