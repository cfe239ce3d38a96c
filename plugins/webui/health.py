"""``/healthz``: this process is alive. ``/readyz``: everything is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from homeagent_sdk.plugin import Principal

from .agent import Agent
from .errors import Refused

Identify = Callable[[web.Request], Awaitable[Principal]]


class Health:
    """The handlers for whoever watches over the agent.

    :param identify: tells whose request it is; without a login only names and states are told
    """

    def __init__(self, agent: Agent, identify: Identify) -> None:
        self._agent = agent
        self._identify = identify

    def add_routes(self, app: web.Application) -> None:
        """Put the routes into an application."""
        app.router.add_get("/healthz", self.alive)
        app.router.add_get("/health", self.alive)
        app.router.add_get("/readyz", self.ready)

    async def alive(self, request: web.Request) -> web.Response:
        """Answer 200 as long as this process can."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """Answer 200 when the kernel says that all is up, else 503; list services and plugins either way."""
        status = await self._agent.status()
        try:
            await self._identify(request)
            shown = ["name", "state", "detail"]
        except Refused:
            shown = ["name", "state"]
        is_ready = bool(status.get("ready"))
        body: dict[str, Any] = {"status": "ready" if is_ready else "not_ready", "ready": is_ready}
        for group in ("services", "plugins"):
            body[group] = [_only(entry, shown) for entry in status.get(group) or []]
        return web.json_response(body, status=200 if is_ready else 503)


def _only(entry: dict[str, Any], shown: list[str]) -> dict[str, Any]:
    return {key: entry[key] for key in shown if key in entry}
