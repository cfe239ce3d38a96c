"""What stands before every handler: the log, the security headers, the check of host and origin, and errors as JSON."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from homeagent_sdk.catalogue import LANGUAGES, language, text
from homeagent_sdk.errors import HomeAgentError

from .errors import AgentRefused, Refused, error_body

BODY_LIMIT_BYTES = 10 * 1024 * 1024
BODY_TIME_S = 60.0
LANGUAGE_COOKIE = "ha_lang"

_JSON_PATHS = ("/v1/", "/api/", "/login/")
_SAFE_METHODS = (hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS)
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain")
_QUIET_PATHS = ("/healthz", "/health", "/readyz")

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; manifest-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """The one middleware of the server.

    :param log: a structlog logger; gets one line for each request, without query, headers or body
    :param allowed_hosts: gives the host names that are allowed besides those of this machine itself
    :param is_public: the server listens beyond loopback, so that it may be asked for by any address
    """

    def __init__(self, log: Any, allowed_hosts: Callable[[], str], is_public: bool) -> None:
        self._log = log
        self._allowed_hosts = allowed_hosts
        self._is_public = is_public

    @property
    def middleware(self) -> Middleware:
        """The middleware, for ``web.Application``."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            started = time.perf_counter()
            status = 499
            try:
                response = await self._answer(request, handler)
                status = response.status
                return response
            finally:
                # Once the answer is on its way: nobody waits for the log.
                asyncio.get_running_loop().call_soon(self._note, request, status, time.perf_counter() - started)

        return guard

    def _note(self, request: web.Request, status: int, took_s: float) -> None:
        write = self._log.debug if request.path in _QUIET_PATHS else self._log.info
        took_ms = round(took_s * 1000, 1)
        write("request", method=request.method, path=request.path, status=status, ms=took_ms, by=request.remote)

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self.check_host(request)
            if request.method not in _SAFE_METHODS and not request.path.startswith("/v1/"):
                check_origin(request)
            return await handler(request)
        except Refused as refused:
            return refusal(request, refused)
        except HomeAgentError as error:
            return refusal(request, AgentRefused(error))
        except web.HTTPRequestEntityTooLarge:
            return refusal(request, too_large())
        except web.HTTPException as error:
            if error.status == 404:
                return refusal(request, Refused("unknown_path", path=request.path[:200]))
            if error.status == 405:
                return refusal(request, Refused("wrong_method", headers={"Allow": error.headers.get("Allow", "")}))
            raise
        except ConnectionResetError:
            raise  # the client has gone; aiohttp deals with that
        except Exception:
            self._log.exception("a request failed", method=request.method, path=request.path)
            return refusal(request, Refused("unforeseen"))

    def check_host(self, request: web.Request) -> None:
        """Refuse a name that is not ours: a foreign page may have pointed its own name at this machine.

        :raises Refused: 403
        """
        name = _host_name(request.headers.get(hdrs.HOST, ""))
        if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
            return
        if _is_address(name, self._is_public):
            return
        allowed = {host.strip().lower().rstrip(".") for host in self._allowed_hosts().split(",")} - {""}
        if name not in allowed:
            raise Refused("wrong_host", host=name[:100])


def check_origin(request: web.Request) -> None:
    """Refuse a change that another site's page asks for.

    :raises Refused: 403
    """
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is None:
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise Refused("wrong_origin", origin="?")
        return
    scheme, _, authority = origin.partition("://")
    ours = request.headers.get(hdrs.HOST, "").lower()
    if _without_port(authority.lower(), scheme) != _without_port(ours, scheme):
        raise Refused("wrong_origin", origin=origin[:100])


def too_large() -> Refused:
    """Return the refusal of a body over the limit."""
    return Refused("body_too_large", limit=f"{BODY_LIMIT_BYTES // (1024 * 1024)} MiB")


def refusal(request: web.Request, refused: Refused) -> web.Response:
    """Return a refusal as JSON, or as plain words where a person looks at a page."""
    chosen = language_of(request)
    if f"{request.path}/".startswith(_JSON_PATHS) or "application/json" in request.headers.get(hdrs.ACCEPT, ""):
        body = error_body(refused, chosen)
        return web.json_response(body, status=refused.kind.status, headers=refused.headers)
    return web.Response(text=refused.message(chosen) + "\n", status=refused.kind.status, headers=refused.headers)


def language_of(request: web.Request) -> str:
    """Return the language of whoever asks: what the page chose, what the browser prefers, or that of this process."""
    chosen = request.cookies.get(LANGUAGE_COOKIE, "")
    if chosen in LANGUAGES:
        return chosen
    for wanted in request.headers.get(hdrs.ACCEPT_LANGUAGE, "").split(","):
        tag = wanted.strip().lower()[:2]
        if tag in LANGUAGES:
            return tag
    return language()


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Put the security headers on every response; for ``on_response_prepare``."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


async def read_body(request: web.Request) -> bytes:
    """Return the whole body.

    :raises Refused: it is over 10 MiB, or did not come within a minute
    """
    if (request.content_length or 0) > BODY_LIMIT_BYTES:
        raise too_large()
    try:
        async with asyncio.timeout(BODY_TIME_S):
            return await request.read()
    except TimeoutError:
        raise Refused("slow_body", seconds=int(BODY_TIME_S)) from None


def words(request: web.Request, key: str, **values: object) -> str:
    """Return a text of the catalogue in the language of whoever asks."""
    return text(key, language_of(request), **values)


def _host_name(host: str) -> str:
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0].rstrip(".") if ":" in name else name.rstrip(".")


def _is_address(name: str, any_address: bool) -> bool:
    """Tell whether a host is an address of this machine; only names can be pointed elsewhere, addresses cannot."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return any_address or address.is_loopback


def _without_port(authority: str, scheme: str) -> str:
    default = {"http": ":80", "https": ":443"}.get(scheme, "")
    return authority.removesuffix(default) if default else authority
