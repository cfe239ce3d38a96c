"""One worker process, seen from the service: takes one frame at a time and answers it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from homeagent_sdk.process import child_environment

START_LIMIT_S = 20.0
_HEAD = struct.Struct("<I")


class AdapterWorker(asyncio.Protocol):
    """A process of ``provider_service.lua_worker`` and the socket to it.

    It is a bare protocol, without streams and tasks, since each turn of a conversation waits for it at least twice.

    :param freed: called when the answer to a frame is in, whoever still waits for it
    :param lost: called when the process or the socket is gone
    """

    def __init__(self, freed: Callable[[AdapterWorker], None], lost: Callable[[AdapterWorker], None]) -> None:
        self.idle_since = 0.0
        """When it answered last, on the clock of the loop."""
        self.process: asyncio.subprocess.Process | None = None
        self.was_killed = False
        """Whether it was ended by this side."""
        self._loop = asyncio.get_running_loop()
        self._freed = freed
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()

    async def start(self, bundled: Path, user: Path) -> None:
        """Start the process and wait until it is ready.

        :raises OSError: it cannot be started, or ended at once
        :raises TimeoutError: it did not become ready
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "provider_service.lua_worker"),
                *(str(theirs.fileno()), str(bundled), str(user), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(Path(__file__).parent.parent),
            )
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await self._loop.create_connection(lambda: self, sock=ours)
                await self._ready
        except BaseException:
            self.kill()
            await self.process.wait()
            raise

    def ask(self, frame: bytes, limit_s: float) -> asyncio.Future[bytes]:
        """Send a frame and return the answer to come; nothing else may be asked before ``freed``.

        The future may be cancelled: the answer is then read and dropped. It ends with :class:`TimeoutError` after
        ``limit_s`` seconds, and with :class:`ConnectionError` if the process dies.
        """
        assert self._answer is None and self._transport is not None
        self._answer = self._loop.create_future()
        if self._transport.is_closing():
            self._answer.set_exception(ConnectionError("the worker process is gone"))
            return self._answer
        self._timer = self._loop.call_later(limit_s, self._late)
        self._transport.write(_HEAD.pack(len(frame)) + frame)
        return self._answer

    def kill(self) -> None:
        """End the process at once."""
        self.was_killed = True
        if self._transport is not None:
            self._transport.abort()
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket over."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collect the answer; the first, empty frame says that the process is ready."""
        self._received += data
        while len(self._received) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._received)
            if len(self._received) < _HEAD.size + length:
                return
            frame = bytes(self._received[_HEAD.size : _HEAD.size + length])
            del self._received[: _HEAD.size + length]
            if self._answer is not None:
                self._settle(frame)
            elif not self._ready.done():
                self._ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is under way."""
        gone = ConnectionError("the worker process is gone")
        if not self._ready.done():
            self._ready.set_exception(gone)
        self._end(gone)
        self._lost(self)

    def _settle(self, frame: bytes) -> None:
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        self.idle_since = self._loop.time()
        self._freed(self)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _late(self) -> None:
        self._end(TimeoutError())
        self.kill()

    def _end(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        if answer is not None and not answer.done():
            answer.set_exception(error)
