"""``/v1``: the agent as an OpenAI model. The agent runs its tools itself, so a client only ever gets text."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.plugin import Principal, Turn

from .agent import AGENT_MODELS, API_CHANNEL, Agent, Input
from .chat_answer import KEEP_ALIVE, ChatAnswer, failure
from .chat_request import ChatRequest, idempotency_key, parse_chat_request
from .errors import AgentRefused, Refused, error_body, outcome_error
from .guard import language_of, read_body, words
from .history_index import HistoryIndex, Point
from .identity import KeyRing, bearer_key
from .paced import paced
from .store import Store
from .streamed_text import StreamedText

KEEP_ALIVE_S = 15.0
_HEADERS_AFTER_S = 5.0
"""So long a stream's headers wait for the first sign of the model, so that an early failure has its HTTP status."""

_PARSE_IN_THREAD_BYTES = 128 * 1024
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request on its way."""

    request: web.Request
    principal: Principal
    asked: ChatRequest
    turn: Turn
    answer: ChatAnswer
    point: Point | None
    """Where the conversation stands, if it has to be recognised by its history."""


class OpenAiApi:
    """The handlers of ``/v1``."""

    def __init__(self, agent: Agent, keys: KeyRing, index: HistoryIndex, store: Store) -> None:
        self._agent = agent
        self._keys = keys
        self._index = index
        self._store = store

    def add_routes(self, app: web.Application) -> None:
        """Put the routes into an application."""
        app.router.add_post("/v1/chat/completions", self.chat_completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)

    async def models(self, request: web.Request) -> web.Response:
        """List the models: the agent's own choice first, then each that is configured."""
        await self._principal(request)
        entries = [_model_entry(name) for name in [AGENT_MODELS[0], *await self._agent.models()]]
        return web.json_response({"object": "list", "data": entries})

    async def model(self, request: web.Request) -> web.Response:
        """Describe one model."""
        await self._principal(request)
        name = request.match_info["model"]
        await self._agent.chosen_model(name)
        return web.json_response(_model_entry(name))

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        """Put the last user message to the agent and answer with what it says."""
        principal = await self._principal(request)
        key = idempotency_key(request.headers.get("Idempotency-Key"))
        asked = await _parsed(await read_body(request))
        model = await self._agent.chosen_model(asked.model)
        delivery_id = await self._delivery_id(principal, key, asked)
        conversation = self._conversation(principal, asked, delivery_id)
        given = Input(API_CHANNEL, conversation, asked.text, delivery_id, asked.no_memory, model)
        turn = await self._agent.submit(principal, given)
        answer = ChatAnswer(turn.turn_id, asked.model, conversation, asked.include_usage)
        point = None
        if asked.conversation is None:
            point = self._index.asked(principal.principal, asked.messages, conversation)
        exchange = _Exchange(request, principal, asked, turn, answer, point)
        return await (self._stream(exchange) if asked.stream else self._whole(exchange))

    async def _principal(self, request: web.Request) -> Principal:
        key = bearer_key(request.headers.get("Authorization"))
        return await self._keys.principal(key, request.remote or "?")

    async def _delivery_id(self, principal: Principal, key: str | None, asked: ChatRequest) -> str:
        """Return the id of this delivery: the same for a repetition with the same key, else a new one."""
        if key is None:
            return secrets.token_hex(16)
        owned = hashlib.sha256(f"{len(principal.principal)}:{principal.principal}{key}".encode("utf-8", "replace"))
        if not await self._store.claim_key(owned.digest(), asked.fingerprint):
            raise Refused("other_body", param="Idempotency-Key")
        owned.update(asked.fingerprint)
        return owned.hexdigest()

    def _conversation(self, principal: Principal, asked: ChatRequest, delivery_id: str) -> str:
        """Return the conversation: by its name, else by its history, else a new one (the same for a repetition)."""
        if asked.conversation is not None:
            return asked.conversation
        found = self._index.find(principal.principal, asked.messages[:-1])
        return found or f"c-{hashlib.sha256(delivery_id.encode()).hexdigest()[:24]}"

    def _record(self, exchange: _Exchange, answer: str, *, is_delivered: bool) -> None:
        """Remember the conversation by its history, once the client has its answer, or as much of it as it got."""
        asked = exchange.point
        if asked is None:
            return
        points = []
        if is_delivered:
            self._index.forget(asked)
        else:
            points.append(asked)
        if answer.strip():
            principal, messages = exchange.principal.principal, exchange.asked.messages
            points.append(self._index.answered(principal, messages, answer, asked.conversation))
        self._store.keep(points)

    async def _whole(self, exchange: _Exchange) -> web.Response:
        outcome = await exchange.turn.result()
        text = _text_of(outcome, language_of(exchange.request))
        self._record(exchange, text, is_delivered=exchange.request.transport is not None)
        return web.json_response(exchange.answer.whole({**outcome, "text": text}))

    async def _stream(self, exchange: _Exchange) -> web.StreamResponse:
        stream = _EventStream(exchange)
        is_delivered = await stream.run()
        self._record(exchange, stream.text.sent, is_delivered=is_delivered)
        return stream.response


class _EventStream:
    """Sends one turn as server-sent events, as it comes.

    A client that hangs up does not end the turn; it is followed to its end, to recognise the conversation later.
    """

    def __init__(self, exchange: _Exchange) -> None:
        self.response = web.StreamResponse(headers=_STREAM_HEADERS)
        self.text = StreamedText(words(exchange.request, "web.interrupted"))
        self._exchange = exchange
        self._is_connected = True

    async def run(self) -> bool:
        """Send everything; return whether the client was there to the end and got an answer.

        :raises Refused: the turn failed before anything was sent
        """
        try:
            async with aclosing(paced(self._exchange.turn.follow(), KEEP_ALIVE_S, _HEADERS_AFTER_S)) as items:
                async for item in items:
                    if item is not None and item["type"] == "outcome":
                        await self._end(item)
                        return self._is_connected
                    await self._take(item)
        except (Refused, HomeAgentError) as error:
            refused = error if isinstance(error, Refused) else AgentRefused(error, is_outcome=True)
            if not self.response.prepared:
                raise refused from error
            body = error_body(refused, language_of(self._exchange.request))
            await self._write(failure(body), is_last=True)
        return False

    async def _take(self, item: dict[str, Any] | None) -> None:
        kind = "pause" if item is None else item["type"]
        if item is not None and kind == "delta":
            more = self.text.delta(str(item["text"]))
            if more:
                await self._write(self._exchange.answer.more(more))
        elif kind == "tool":
            self.text.tool()
        elif kind == "reset":
            self.text.reset()
        elif kind == "pause":
            await self._write(KEEP_ALIVE)

    async def _end(self, outcome: dict[str, Any]) -> None:
        final = _text_of(outcome, language_of(self._exchange.request))
        more = self.text.finish(final)
        text = self._exchange.answer.more(more) if more else b""
        await self._write(text + self._exchange.answer.ending(outcome), is_last=True)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send, as long as somebody is there. Waits while the client reads slowly, which slows the stream."""
        if not self._is_connected:
            return
        try:
            if not self.response.prepared:
                await self.response.prepare(self._exchange.request)
                data = self._exchange.answer.opening() + data
            await self.response.write(data)
            if is_last:
                await self.response.write_eof()
        except ConnectionResetError:
            self._is_connected = False


def _text_of(outcome: dict[str, Any], language: str) -> str:
    """Return the text of an answer, or of what was said before it was stopped.

    :raises Refused: the turn has another outcome
    """
    if outcome.get("outcome") not in ("answer", "stopped"):
        raise outcome_error(outcome, language)
    return str(outcome.get("text") or "")


async def _parsed(body: bytes) -> ChatRequest:
    if len(body) > _PARSE_IN_THREAD_BYTES:
        return await asyncio.to_thread(parse_chat_request, body)
    return parse_chat_request(body)


def _model_entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "homeagent"}
