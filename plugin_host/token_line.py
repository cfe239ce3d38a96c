"""The supervisor's end of a plugin's line: tokens go out, reports of its state come in."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.logging import get_logger

_LONGEST_LINE_BYTES = 8 * 1024
_LEAST_PAUSE_S = 0.02
"""Between two tokens of one plugin; one that asks without end waits, and nobody else does."""
_LAST_WORDS_S = 0.5
_log = get_logger("token_line")

Mint = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a plugin process said of itself."""

    state: str
    """running or failed."""
    reason: str = ""


class TokenLine:
    """Answers one plugin process until it is gone.

    :param mint: gets a one-time token from the kernel, for this process
    :ivar ready: done with the first report
    :ivar last: the newest report
    """

    def __init__(self, end: socket.socket, name: str, generation: int, mint: Mint) -> None:
        self._name = name
        self._generation = generation
        self._mint = mint
        self.ready: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.last: Report | None = None
        self.moved_at = asyncio.get_running_loop().time()
        """When it last was the plugin's turn to do something: at its start, and at each token it got."""
        self.waits_for_kernel = False
        self._task = asyncio.create_task(self._serve(end), name=f"token-line-{name}")

    async def close(self) -> None:
        """Read what is still on the line, then hang up: a process at the other end sees the end of file and exits.

        The news that a process has ended may overtake its last report.
        """
        await asyncio.wait({self._task}, timeout=_LAST_WORDS_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self, end: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=_LONGEST_LINE_BYTES)
        try:
            while line := await reader.readline():
                if line.strip() == b"token":
                    writer.write(json.dumps(await self._answer()).encode() + b"\n")
                    await writer.drain()
                    await asyncio.sleep(_LEAST_PAUSE_S)
                else:
                    self._take_report(line)
        except (ConnectionError, ValueError) as error:
            # ValueError: a line without end. The process is watched elsewhere; its line is of no use any more.
            _log.warning("a plugin's line broke", plugin=self._name, reason=str(error))
        finally:
            writer.close()

    async def _answer(self) -> dict[str, object]:
        self.waits_for_kernel = True
        try:
            token = await self._mint()
        except HomeAgentError as error:
            return {"error": str(error)}
        finally:
            self.waits_for_kernel = False
            self.moved_at = asyncio.get_running_loop().time()
        return {"name": self._name, "token": token, "generation": self._generation}

    def _take_report(self, line: bytes) -> None:
        try:
            body = json.loads(line)
            report = Report(str(body["state"]), str(body.get("reason", ""))[:1000])
        except (ValueError, KeyError, TypeError, AttributeError):
            _log.warning("a plugin wrote nonsense on its line", plugin=self._name, bytes=len(line))
            return
        self.last = report
        if not self.ready.done():
            self.ready.set_result(report)
