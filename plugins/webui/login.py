"""Logging in: a key becomes a cookie, and each request of the page is checked by it."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from homeagent_sdk.plugin import Principal

from .chat_request import parse_json
from .errors import Refused
from .guard import read_body, refusal
from .identity import KeyRing, bearer_key
from .seal import COOKIE_S, Seal

COOKIE = "homeagent_session"

_LONGEST_LOGIN_BYTES = 8 * 1024


class Login:
    """Makes and checks login cookies. A cookie ends after 30 days, by logging out, or when its key is removed."""

    def __init__(self, keys: KeyRing, seal: Seal, wall: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._seal = seal
        self._wall = wall

    def add_routes(self, app: web.Application) -> None:
        """Put the routes into an application."""
        app.router.add_post("/login", self.log_in)
        app.router.add_post("/api/logout", self.log_out)

    async def principal(self, request: web.Request) -> Principal:
        """Return who is logged in.

        :raises Refused: nobody, or the key behind the login is not valid any more
        """
        key = self._seal.key_of(request.cookies.get(COOKIE, ""), self._wall())
        if key is None:
            raise Refused("not_logged_in")
        try:
            return await self._keys.principal(key, request.remote or "?")
        except Refused as refused:
            raise (Refused("not_logged_in") if refused.refusal == "wrong_key" else refused) from None

    async def anyone(self, request: web.Request) -> Principal:
        """Return whose request it is, by cookie or by ``Authorization``; raises :class:`Refused` if nobody's."""
        if "Authorization" in request.headers:
            return await self._keys.principal(bearer_key(request.headers["Authorization"]), request.remote or "?")
        return await self.principal(request)

    async def log_in(self, request: web.Request) -> web.Response:
        """Take a key as JSON ``{"key": …}`` and answer with JSON, or from a form and answer with a redirect."""
        is_form = request.content_type == "application/x-www-form-urlencoded"
        if (request.content_length or 0) > _LONGEST_LOGIN_BYTES:
            raise Refused("body_too_large", limit=f"{_LONGEST_LOGIN_BYTES // 1024} KiB")
        given = (await request.post()) if is_form else parse_json(await read_body(request))
        key = given.get("key")
        if not isinstance(key, str) or not key.strip():
            raise Refused("bad_field", param="key", expected="text")
        try:
            principal = await self._keys.principal(key.strip(), request.remote or "?")
        except Refused as refused:
            if not is_form:
                raise
            return _back_to_login(request, refused)
        answer = web.json_response({"principal": principal.principal, "name": principal.name})
        response = web.Response(status=303, headers={"Location": "/"}) if is_form else answer
        self._set_cookie(request, response, key.strip())
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """Take the cookie back."""
        response = web.json_response({})
        response.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
        return response

    def _set_cookie(self, request: web.Request, response: web.Response, key: str) -> None:
        is_https = request.headers.get("Origin", "").startswith("https://")
        response.set_cookie(
            COOKIE,
            self._seal.cookie(key, self._wall()),
            max_age=COOKIE_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=is_https,
        )


def _back_to_login(request: web.Request, refused: Refused) -> web.Response:
    """Answer a form without script: the words, for a person."""
    response = refusal(request, refused)
    response.headers["Refresh"] = "3; url=/login"
    return response
