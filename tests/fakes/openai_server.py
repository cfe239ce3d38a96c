"""A scripted OpenAI-compatible server: the far end of the provider service in tests and benchmarks.

In a test::

    async with FakeOpenAI() as fake:
        fake.push(text("hello"), error(429, retry_after=2))
        ...  # talk to fake.url, look at fake.requests

or with a callable that is given each :class:`Recorded` request and returns a :class:`Reply` (or None for the default)::

    async with FakeOpenAI(script=lambda request: text(request.last_user.upper())) as fake: ...

On its own: ``python -m tests.fakes.openai_server --port 0`` prints its base URL as the first line. Such a server is
scripted over HTTP: ``POST /_script`` with a list of replies (the fields of :class:`Reply`), ``GET /_requests``.

Without a script it answers at once. It echoes the last user message; ``call tool NAME {json}`` in that message makes
it call the tool if it was offered; a tool result as the last message is quoted; a message with ``recall:`` or ``what
do you remember about`` is answered with all system and user text that it was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import signal
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from aiohttp import web

from tests.fakes.replies import (
    Recorded,
    Reply,
    context_full,
    default_reply,
    disconnect,
    disconnect_midway,
    error,
    garbage,
    plain,
    slow,
    text,
    tool_call,
    tool_calls,
)

__all__ = [
    "FakeOpenAI",
    "Recorded",
    "Reply",
    "context_full",
    "disconnect",
    "disconnect_midway",
    "error",
    "garbage",
    "slow",
    "text",
    "tool_call",
    "tool_calls",
]

MAX_RECORDED = 20_000

Script = Callable[[Recorded], Reply | Awaitable[Reply | None] | None]


class FakeOpenAI:
    """The server; an async context manager.

    :param script: called for each chat request when no reply is queued
    :param models: what ``GET /v1/models`` lists
    :param api_key: if set, any other key is answered 401
    :param chunk_delay_s: wait before each chunk of a stream
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        models: Iterable[str] = ("fake-model",),
        api_key: str | None = None,
        chunk_delay_s: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.script = script
        self.models = list(models)
        self.api_key = api_key
        self.chunk_delay_s = chunk_delay_s
        self.requests: list[Recorded] = []
        self.queue: deque[Reply] = deque()
        self.open_streams = 0
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base URL, ending in /v1."""
        return f"http://{self._host}:{self._port}/v1"

    @property
    def chats(self) -> list[Recorded]:
        """The chat requests among :attr:`requests`."""
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    def push(self, *replies: Reply) -> None:
        """Queue replies; each chat request takes one, before the script is asked."""
        self.queue.extend(replies)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=256 * 2**20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/_script", self._set_script)
        app.router.add_get("/_requests", self._get_requests)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _record(self, request: web.Request) -> Recorded:
        raw = await request.text()
        try:
            body: Any = json.loads(raw) if raw else None
        except json.JSONDecodeError:
            body = raw
        recorded = Recorded(request.method, request.path, dict(request.headers), body, time.time())
        self.requests.append(recorded)
        if len(self.requests) > MAX_RECORDED:
            del self.requests[: MAX_RECORDED // 10]
        return recorded

    async def _list_models(self, request: web.Request) -> web.Response:
        await self._record(request)
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "fake"} for name in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _set_script(self, request: web.Request) -> web.Response:
        self.push(*(Reply(**fields) for fields in await request.json()))
        return web.json_response({"queued": len(self.queue)})

    async def _get_requests(self, request: web.Request) -> web.Response:
        listing = [
            {"method": r.method, "path": r.path, "headers": r.headers, "body": r.body, "time": r.time}
            for r in self.requests
        ]
        return web.json_response(listing)

    async def _choose(self, recorded: Recorded) -> Reply:
        if self.api_key is not None and recorded.headers.get("Authorization") != f"Bearer {self.api_key}":
            return error(401, "invalid_api_key", "Incorrect API key provided.")
        if not isinstance(recorded.body, dict) or not isinstance(recorded.body.get("messages"), list):
            return error(400, "invalid_body", "We could not parse the JSON body of your request.")
        if self.queue:
            return self.queue.popleft()
        chosen: Any = self.script(recorded) if self.script is not None else None
        if inspect.isawaitable(chosen):
            chosen = await chosen
        return chosen if isinstance(chosen, Reply) else default_reply(recorded)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        recorded = await self._record(request)
        reply = await self._choose(recorded)
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.raw is not None:
            return web.Response(status=reply.status, text=reply.raw, headers=reply.headers, content_type="text/html")
        if reply.error is not None or reply.status >= 400:
            return web.json_response({"error": reply.error}, status=reply.status, headers=reply.headers)
        if recorded.body.get("stream"):
            return await self._stream(request, recorded, reply)
        if reply.disconnect_after is not None:
            _cut(request)
        return web.json_response(_whole(recorded, reply), headers=reply.headers)

    async def _stream(self, request: web.Request, recorded: Recorded, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **reply.headers})
        await response.prepare(request)
        delay_s = self.chunk_delay_s if reply.chunk_delay_s is None else reply.chunk_delay_s
        self.open_streams += 1
        try:
            events = list(_events(recorded, reply))
            cut_after = reply.stall_after if reply.disconnect_after is None else reply.disconnect_after
            if cut_after is not None:
                events = events[: 1 + cut_after]
            if delay_s:
                for event in events:
                    await asyncio.sleep(delay_s)
                    await response.write(event)
            else:
                await response.write(b"".join(events))
            if reply.stall_after is not None or reply.linger_s:
                await asyncio.sleep(reply.linger_s or 3600)
            if reply.disconnect_after is not None:
                await asyncio.sleep(0)
                _cut(request)
            else:
                await response.write_eof()
        finally:
            self.open_streams -= 1
        return response


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _usage(recorded: Recorded, reply: Reply) -> dict[str, Any] | None:
    if reply.usage is not None:
        return reply.usage or None
    prompt = sum(len(plain(m.get("content")).encode()) for m in recorded.messages) // 4 + 1
    answer = len(reply.text.encode()) // 4 + 1
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _calls(reply: Reply) -> list[dict[str, Any]]:
    calls = []
    for call in reply.tool_calls:
        arguments = call.get("arguments")
        encoded = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        function = {"name": call["name"], "arguments": encoded}
        calls.append(
            {"id": call.get("id") or f"call_{uuid.uuid4().hex[:12]}", "type": "function", "function": function}
        )
    return calls


def _frame(recorded: Recorded, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex[:12]}",
        "object": kind,
        "created": int(time.time()),
        "model": recorded.body.get("model", "fake-model"),
    }


def _whole(recorded: Recorded, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = _calls(reply)
    finish = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    body = _frame(recorded, "chat.completion")
    body["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    if usage := _usage(recorded, reply):
        body["usage"] = usage
    return body


def _cut_up(string: str, pieces: int) -> list[str]:
    if not string:
        return []
    size = max(1, -(-len(string) // pieces)) if pieces else 24
    return [string[i : i + size] for i in range(0, len(string), size)]


def _deltas(reply: Reply) -> Iterable[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _cut_up(reply.reasoning, 0):
        yield {"reasoning_content": piece}
    for piece in _cut_up(reply.text, reply.pieces):
        yield {"content": piece}
    for index, call in enumerate(_calls(reply)):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": function["name"], "arguments": ""}}]}
        for piece in _cut_up(function["arguments"], 3):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _events(recorded: Recorded, reply: Reply) -> Iterable[bytes]:
    frame = _frame(recorded, "chat.completion.chunk")
    for delta in _deltas(reply):
        yield _sse({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    finish = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    yield _sse({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if (recorded.body.get("stream_options") or {}).get("include_usage") and (usage := _usage(recorded, reply)):
        yield _sse({**frame, "choices": [], "usage": usage})
    if reply.done_marker:
        yield b"data: [DONE]\n\n"


def _sse(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    models = options.model or ["fake-model"]
    fake = FakeOpenAI(
        models=models, api_key=options.api_key, chunk_delay_s=options.chunk_delay, host=options.host, port=options.port
    )
    async with fake:
        print(fake.url, flush=True)
        await stop.wait()


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description="a scripted OpenAI-compatible server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", help="a model to list; may be repeated")
    parser.add_argument("--api-key", help="answer 401 to any other key")
    parser.add_argument("--chunk-delay", type=float, default=0.0, help="seconds before each chunk of a stream")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
