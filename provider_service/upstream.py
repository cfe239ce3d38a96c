"""HTTP to the sources: one pool of connections, a limit on every wait and on the size."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from homeagent_sdk.catalogue import text
from provider_service.errors import CallFailed, Disconnected, Fault

USER_AGENT = "HomeAgent/0.1"
CONNECTIONS_PER_HOST = 32
KEEP_ALIVE_S = 30.0
MAX_ERROR_BODY_BYTES = 64 * 1024
TAIL_WAIT_S = 0.02
"""How long the end of a complete answer is awaited, so that its connection can be used again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may take, in seconds and bytes."""

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    idle_s: float = 60.0
    """Between two pieces of a stream."""
    total_s: float = 180.0
    after_finish_s: float = 2.0
    """How long usage and the end are awaited once the model has finished."""
    response_bytes: int = 32 * 1024 * 1024


class Response:
    """An answer under way."""

    def __init__(self, response: aiohttp.ClientResponse, limits: Limits, deadline: float) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.content_type = response.headers.get("Content-Type", "").lower()
        self._content = response.content
        self._limits = limits
        self._deadline = deadline
        self._received = 0

    async def read_piece(self, wait_s: float | None = None) -> bytes:
        """Return what has arrived, waiting for something if nothing has; empty at the end.

        :param wait_s: default: the limits' ``first_byte_s``, then ``idle_s``
        :raises CallFailed: nothing came in time, or too much altogether
        :raises Disconnected: the connection broke
        """
        if wait_s is None:
            wait_s = self._limits.idle_s if self._received else self._limits.first_byte_s
        left = self._deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, min(wait_s, left))):
                data = await self._content.readany()
        except TimeoutError:
            raise CallFailed(Fault.OTHER, text("provider.silent", seconds=f"{min(wait_s, max(left, 0)):.0f}")) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Disconnected(type(error).__name__) from error
        self._received += len(data)
        if self._received > self._limits.response_bytes:
            raise CallFailed(Fault.OTHER, text("provider.too_large", limit=self._limits.response_bytes))
        return data

    async def read_error(self) -> bytes:
        """Return the beginning of the body of an error, as far as it comes."""
        body = b""
        try:
            while len(body) < MAX_ERROR_BODY_BYTES and (data := await self.read_piece(self._limits.connect_s)):
                body += data
        except (CallFailed, Disconnected):
            return body
        return body[:MAX_ERROR_BODY_BYTES]

    async def finish(self) -> None:
        """Take the end of a complete answer off the connection, if it is there."""
        if self._content.at_eof():
            return
        try:
            async with asyncio.timeout(TAIL_WAIT_S):
                while await self._content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError, OSError):
            return


class Upstream:
    """The HTTP client of the service.

    :param limits: for every call
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._connector: aiohttp.TCPConnector | None = None
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()
        if self._connector is not None:
            await self._connector.close()
        self._sessions, self._connector = {}, None

    @asynccontextmanager
    async def post(self, url: URL, headers: Mapping[str, str], body: bytes, deadline: float) -> AsyncIterator[Response]:
        """Send a request; leaving the block early closes its connection.

        A connection that had idled and turns out to be dead is replaced once: the server never saw the request.

        :param deadline: when the call must have ended, on the clock of the loop
        :raises CallFailed: no connection, or no answer in time
        :raises Disconnected: the connection broke before there was an answer
        """
        try:
            response = await self._send(url, headers, body, deadline)
        except Disconnected as error:
            if not error.was_reused:
                raise
            response = await self._send(url, headers, body, deadline)
        try:
            yield Response(response, self.limits, deadline)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def _send(self, url: URL, headers: Mapping[str, str], body: bytes, deadline: float) -> aiohttp.ClientResponse:
        left = min(self.limits.first_byte_s, deadline - asyncio.get_running_loop().time())
        trace = SimpleNamespace(was_reused=False)
        session = self._session(is_local=is_loopback(url))
        try:
            async with asyncio.timeout(max(0.0, left)):
                # Redirects are not followed: they would carry the key to whoever is named in them.
                return await session.post(
                    url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=trace
                )
        except TimeoutError as error:
            # aiohttp's own limit on connecting is a ServerTimeoutError, which is a TimeoutError too.
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise CallFailed(Fault.OTHER, text("provider.no_connection", host=url.host)) from None
            raise CallFailed(Fault.OTHER, text("provider.silent", seconds=f"{left:.0f}")) from None
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(Fault.OTHER, _why_no_connection(url, error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Disconnected(type(error).__name__, was_reused=trace.was_reused) from error

    def _session(self, *, is_local: bool) -> aiohttp.ClientSession:
        """Return the session for a host; proxies of the environment are for others than this machine."""
        if is_local not in self._sessions:
            if self._connector is None:
                self._connector = aiohttp.TCPConnector(
                    limit_per_host=CONNECTIONS_PER_HOST, keepalive_timeout=KEEP_ALIVE_S
                )
            self._sessions[is_local] = aiohttp.ClientSession(
                connector=self._connector,
                connector_owner=False,
                trust_env=not is_local,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_s),
                headers={"User-Agent": USER_AGENT},
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_noting_reuse()],
            )
        return self._sessions[is_local]


def is_loopback(url: URL) -> bool:
    """Whether a URL leads to this machine."""
    host = url.host or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _noting_reuse() -> aiohttp.TraceConfig:
    async def note(session: aiohttp.ClientSession, context: Any, parameters: Any) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.was_reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


def _why_no_connection(url: URL, error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return text("provider.no_such_host", host=url.host)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return text("provider.bad_certificate", host=url.host)
    return text("provider.no_connection", host=f"{url.host}:{url.port}")
