"""``/api``: what the chat page asks for, as JSON, with the login cookie."""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import aclosing
from typing import Any

from aiohttp import web

from homeagent_sdk.catalogue import LANGUAGES, texts
from homeagent_sdk.errors import HomeAgentError, NotFound
from homeagent_sdk.plugin import Principal

from .agent import PAGE_CHANNEL, Agent, Input
from .chat_request import conversation_name, input_text, parse_json
from .errors import AgentRefused, Refused, error_body
from .guard import language_of, read_body
from .live_pages import LivePages
from .login import Login
from .paced import paced
from .seal import Seal

HISTORY_TURNS = 100
CONVERSATIONS = 100

_KEEP_ALIVE_S = 15.0
_RECONNECT_MS = 1000
_LINES = {"Content-Type": "application/x-ndjson; charset=utf-8", "X-Accel-Buffering": "no"}
_EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


class PageApi:
    """The handlers of ``/api``."""

    def __init__(self, agent: Agent, login: Login, seal: Seal, pages: LivePages) -> None:
        self._agent = agent
        self._login = login
        self._seal = seal
        self._pages = pages

    def add_routes(self, app: web.Application) -> None:
        """Put the routes into an application."""
        app.router.add_get("/api/texts", self.texts)
        app.router.add_get("/api/state", self.state)
        app.router.add_get("/api/conversations", self.conversations)
        app.router.add_get("/api/history", self.history)
        app.router.add_get("/api/follow", self.follow)
        app.router.add_get("/api/events", self.events)
        app.router.add_post("/api/send", self.send)
        app.router.add_post("/api/stop", self.stop)

    async def texts(self, request: web.Request) -> web.Response:
        """Give all texts of the page in one language; needs no login."""
        wanted = request.query.get("lang", "")
        chosen = wanted if wanted in LANGUAGES else language_of(request)
        prefix = "web.page."
        found = {key.removeprefix(prefix): text for key, text in texts("web", chosen).items() if key.startswith(prefix)}
        return web.json_response({"language": chosen, "languages": list(LANGUAGES), "texts": found})

    async def state(self, request: web.Request) -> web.Response:
        """Tell who is logged in and which models there are."""
        principal = await self._login.principal(request)
        return web.json_response(
            {
                "principal": principal.principal,
                "name": principal.name,
                "role": principal.role,
                "models": await _model_state(self._agent),
            }
        )

    async def conversations(self, request: web.Request) -> web.Response:
        """List the conversations, the one used last first."""
        principal = await self._login.principal(request)
        return web.json_response({"conversations": await self._agent.conversations(principal, CONVERSATIONS)})

    async def history(self, request: web.Request) -> web.Response:
        """Give the last turns of a conversation, each with a ticket to follow it."""
        principal = await self._login.principal(request)
        conversation = conversation_name(request.query.get("conversation"), "conversation")
        turns = await self._agent.history(principal, conversation, HISTORY_TURNS)
        ticketed = [{**turn, "ticket": self._seal.ticket(principal.principal, turn["turn_id"])} for turn in turns]
        return web.json_response({"turns": ticketed})

    async def send(self, request: web.Request) -> web.Response:
        """Put a message to the agent. Safe to repeat with the same ``delivery_id``."""
        principal = await self._login.principal(request)
        given = await _json_of(request)
        asked = _input(principal, given)
        turn = await self._agent.submit(principal, asked)
        ticket = self._seal.ticket(principal.principal, turn.turn_id)
        started = {"type": "turn", "conversation": asked.conversation, "turn_id": turn.turn_id, "ticket": ticket}
        self._pages.push({**started, "text": asked.text, "delivery_id": given["delivery_id"]}, principal.principal)
        return web.json_response({"turn_id": turn.turn_id, "ticket": ticket, "status": turn.status})

    async def stop(self, request: web.Request) -> web.Response:
        """Stop what runs in a conversation."""
        principal = await self._login.principal(request)
        given = await _json_of(request)
        conversation = conversation_name(given.get("conversation"), "conversation")
        return web.json_response({"stopped": await self._agent.stop(principal, conversation)})

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Stream the items of a turn, a JSON line each, as the kernel gives them; ``ping`` after 15 s of silence."""
        principal = await self._login.principal(request)
        turn_id = self._seal.turn_of(principal.principal, request.query.get("ticket", ""))
        if turn_id is None:
            raise Refused("unknown_turn", param="ticket")
        response = web.StreamResponse(headers=_LINES)
        await response.prepare(request)
        try:
            async with aclosing(paced(self._agent.turn(turn_id).follow(), _KEEP_ALIVE_S)) as items:
                async for item in items:
                    await response.write(_line(item or {"type": "ping"}))
        except ConnectionResetError:
            return response
        except HomeAgentError as error:
            refused = Refused("unknown_turn", param="ticket") if isinstance(error, NotFound) else AgentRefused(error)
            await response.write(_line({"type": "failed", **error_body(refused, language_of(request))}))
        await response.write_eof()
        return response

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream what happens without the page's asking, as server-sent events.

        turn (someone sent a message, perhaps this page) · output (the agent speaks in a conversation of the page) ·
        notice (it speaks in one of the API) · state (ask for the state again). There is no replay: a page that connects
        again reads the history.
        """
        principal = await self._login.principal(request)
        response = web.StreamResponse(headers=_EVENTS)
        await response.prepare(request)
        page = self._pages.open(principal.principal)
        try:
            await response.write(f"retry: {_RECONNECT_MS}\n\n".encode())
            async with aclosing(page.events()) as events:
                async for event in events:
                    await response.write(b"data: " + _line(event) + b"\n" if event else b": keep-alive\n\n")
        except ConnectionResetError:
            return response
        finally:
            self._pages.remove(page)
        await response.write_eof()
        return response


async def _model_state(agent: Agent) -> dict[str, Any]:
    """Tell whether answers come from a configured model, from the embedded one only, or from none."""
    try:
        sources = await agent.sources()
    except HomeAgentError:
        return {"kind": "unknown", "names": []}
    names = await agent.models()
    if not sources:
        return {"kind": "none", "names": []}
    return {"kind": "embedded" if all(source.get("embedded") for source in sources) else "configured", "names": names}


def _input(principal: Principal, given: dict[str, Any]) -> Input:
    text = input_text(given.get("text"), "text")
    conversation = conversation_name(given.get("conversation"), "conversation")
    delivery = conversation_name(given.get("delivery_id"), "delivery_id")
    owned = hashlib.sha256(f"{len(principal.principal)}:{principal.principal}{delivery}".encode()).hexdigest()
    return Input(PAGE_CHANNEL, conversation, text, owned, no_memory=given.get("no_memory") is True)


async def _json_of(request: web.Request) -> dict[str, Any]:
    """Return the JSON body; another site's form cannot send this type without asking first.

    :raises Refused: it is something else
    """
    if request.content_type != "application/json":
        raise Refused("json_expected")
    return await asyncio.to_thread(parse_json, await read_body(request))


def _line(item: dict[str, Any]) -> bytes:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
