"""How a peer proves who it is: a key file that only its own uid can read, or a one-time token from the supervisor."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from homeagent_sdk.bus.context import detached
from homeagent_sdk.errors import Denied, Unavailable

_TOKEN_TIMEOUT_S = 30.0
_MAX_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Secret:
    """What a proof is made from: the peer's name, the shared secret and, for a plugin, its generation."""

    name: str
    secret: str
    generation: int = 0

    def proof(self, nonce: bytes) -> bytes:
        """Answer the hub's challenge."""
        return prove(self.secret, self.name, nonce)


class Credential(ABC):
    """Where a peer's secret comes from; asked at every hello, since a token is good for one hello only."""

    @abstractmethod
    async def secret(self) -> Secret:
        """Return the secret for the next hello.

        :raises Denied: there is none to be had
        :raises Unavailable: not at the moment
        """

    @staticmethod
    def from_key_file(name: str, path: Path) -> KeyCredential:
        """Read the key that a service or the ``homeagent`` command shares with the kernel.

        :raises Denied: the file is missing, unreadable or holds no key
        """
        try:
            key = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Denied(
                f"cannot read the key file {path}: {error}",
                hint="`homeagent up` makes it; run this as the user who started HomeAgent",
            ) from error
        if len(key) < 32:
            raise Denied(f"the key file {path} holds no key", hint="delete it and run `homeagent up` again")
        return KeyCredential(name, key)

    @staticmethod
    def from_token_channel(descriptor: int) -> TokenChannel:
        """Use a plugin's line to its supervisor; ``descriptor`` is one end of a stream socket pair."""
        return TokenChannel(descriptor)


def prove(secret: str, name: str, nonce: bytes) -> bytes:
    """Return HMAC-SHA256 under ``secret`` over ``homeagent-bus-1|<name>|<nonce>``."""
    return hmac.new(secret.encode(), b"homeagent-bus-1|" + name.encode() + b"|" + nonce, hashlib.sha256).digest()


class KeyCredential(Credential):
    """A secret shared with the kernel for good: services and the ``homeagent`` command."""

    def __init__(self, name: str, secret: str) -> None:
        self._secret = Secret(name, secret)

    async def secret(self) -> Secret:
        """Return the key."""
        return self._secret


class TokenChannel(Credential):
    """A plugin's line to its supervisor: one-time tokens come in, reports of its state go out.

    Line protocol on a stream socket pair: the plugin writes ``token`` and reads one line of JSON, ``{"name", "token",
    "generation"}`` or ``{"error"}``; it may write a line of JSON, ``{"state": "running"}`` or ``{"state": "failed",
    "reason"}``. End of file means that the supervisor is gone.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue(maxsize=8)
        self._reader: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._opening = asyncio.Lock()
        self.closed = asyncio.Event()
        """Set when the supervisor is gone."""

    async def open(self) -> None:
        """Begin to listen; safe to call twice."""
        async with self._opening:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(sock=self._socket, limit=_MAX_LINE_BYTES)
                self._reader = asyncio.create_task(self._read(), name="token-channel", context=detached())

    async def secret(self) -> Secret:
        """Ask the supervisor for a token."""
        await self.open()
        async with self._lock:
            while not self._answers.empty():
                self._answers.get_nowait()  # an answer to a question that was given up
            await self._write(b"token\n")
            try:
                line = await asyncio.wait_for(self._answers.get(), _TOKEN_TIMEOUT_S)
            except TimeoutError as error:
                raise Unavailable("the plugin host gave no token in time") from error
        return _read_token(line)

    async def report(self, state: str, reason: str = "") -> None:
        """Tell the supervisor how this plugin stands."""
        await self.open()
        await self._write(json.dumps({"state": state, "reason": reason[:1000]}).encode() + b"\n")

    async def close(self) -> None:
        """Stop listening."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._streams is not None:
            self._streams[1].close()
            with suppress(OSError):
                await self._streams[1].wait_closed()
        self._socket.close()
        self.closed.set()

    async def _write(self, line: bytes) -> None:
        if self._streams is None or self.closed.is_set():
            raise Unavailable("the plugin host is gone")
        try:
            self._streams[1].write(line)
            await self._streams[1].drain()
        except OSError as error:
            raise Unavailable("the plugin host is gone") from error

    async def _read(self) -> None:
        assert self._streams is not None
        try:
            while line := await self._streams[0].readline():
                self._keep(line)
        except (OSError, ValueError):
            pass  # the same as an end of file: nothing more will come
        self.closed.set()
        self._keep(b"")

    def _keep(self, line: bytes) -> None:
        """Keep an answer; of more than fit, which nobody asked for, the oldest goes."""
        if self._answers.full():
            self._answers.get_nowait()
        self._answers.put_nowait(line)


def _read_token(line: bytes) -> Secret:
    """Read the supervisor's answer; ``b""`` is its end of file."""
    if not line:
        raise Unavailable("the plugin host is gone")
    try:
        answer = json.loads(line)
        if "error" in answer:
            raise Unavailable(f"the plugin host gave no token: {answer['error']}")
        return Secret(str(answer["name"]), str(answer["token"]), int(answer["generation"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Unavailable(f"the plugin host's answer cannot be read: {error!r}"[:200]) from error
