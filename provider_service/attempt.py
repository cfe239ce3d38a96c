"""One request to one source: from the unified request to the pieces of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from homeagent_sdk.catalogue import text
from provider_service.adapter_workers import AdapterWorkers
from provider_service.answer import Answer
from provider_service.chat_request import ChatRequest
from provider_service.endpoint import headers_of, url_of
from provider_service.errors import AdapterError, CallFailed, Disconnected, Fault
from provider_service.failure import failure_of
from provider_service.framing import Framing, choose_framing
from provider_service.source import Source
from provider_service.upstream import Response, Upstream


class Attempt:
    """One call of a source.

    :param key: of the source
    :param redact: masks the key in what the source tells
    :param deadline: when it must have ended, on the clock of the loop
    """

    def __init__(
        self,
        source: Source,
        request: ChatRequest,
        *,
        key: str | None,
        redact: Callable[[str], str],
        workers: AdapterWorkers,
        upstream: Upstream,
        deadline: float,
    ) -> None:
        self.answer = Answer(source.adapter)
        self.is_partial = False
        """The answer ended without the source saying that it is complete."""
        self.first_piece_at: float | None = None
        """When the first text or reasoning came, on the clock of the loop."""
        self._source = source
        self._request = request
        self._key = key
        self._redact = redact
        self._workers = workers
        self._upstream = upstream
        self._deadline = deadline
        self._version: str | None = None
        self._state = b""

    async def pieces(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield ``{"type": "delta" | "reasoning", "text"}`` as they come; :attr:`answer` is complete afterwards.

        :raises CallFailed: the source did not answer, or stopped in the middle; the answer has what came
        """
        try:
            async with aclosing(self._stream()) as stream:
                async for piece in stream:
                    yield piece
        except AdapterError as error:
            fault = Fault.OTHER if error.is_upstream else Fault.ADAPTER
            reason = text("provider.not_json") if error.is_upstream else str(error)
            raise CallFailed(fault, self._redact(reason)) from error
        except Disconnected as error:
            raise CallFailed(Fault.OTHER, text("provider.disconnected")) from error

    async def _stream(self) -> AsyncGenerator[dict[str, Any], None]:
        url, headers, body = await self._prepared()
        async with self._upstream.post(url, headers, body, self._deadline) as response:
            if not 200 <= response.status < 300:
                raise await self._failure(response)
            framing: Framing | None = None
            while True:
                data = await self._next(response)
                if framing is None and data:
                    framing = choose_framing(response.content_type, data)
                events = [] if framing is None else framing.feed(data) if data else framing.end()
                if events and framing is not None:
                    for piece in await self._understood(events, framing):
                        yield piece
                if not data or (framing is not None and framing.is_done):
                    break
            if data:
                await response.finish()
        self._check_end(framing)

    async def _next(self, response: Response) -> bytes:
        """Return the next piece of the body; once the model has finished, what is missing is no failure."""
        if self.answer.finish_reason is None:
            return await response.read_piece()
        try:
            return await response.read_piece(self._upstream.limits.after_finish_s)
        except (CallFailed, Disconnected):
            return b""

    async def _prepared(self) -> tuple[Any, dict[str, str], bytes]:
        source = self._source
        meta = {
            "source": source.name,
            "model": source.model,
            "base_url": source.shown_url,
            "context_window": source.context_window,
        }
        unified = json.dumps(self._request.for_source(source), ensure_ascii=False).encode("utf-8", "surrogatepass")
        made = await self._workers.perform("request", source.adapter, request=unified, meta=meta)
        self._version = made["version"]
        return url_of(source, made["endpoint"]), headers_of(source, made["headers"], self._key), made["body"]

    async def _understood(self, events: list[bytes], framing: Framing) -> list[dict[str, Any]]:
        """Have the adapter read events, take them into the answer, and return what can be shown."""
        adapter, version = self._source.adapter, self._version
        if framing.is_whole:
            made = await self._workers.perform("response", adapter, version=version, body=events[0])
            results = [json.loads(made["result"])]
        else:
            made = await self._workers.perform("chunks", adapter, version=version, events=events, state=self._state)
            results = json.loads(made["result"])
            self._state = made["state"]
        shown: list[dict[str, Any]] = []
        for result in results:
            if isinstance(result, dict):
                self._take(result, shown)
        if shown and self.first_piece_at is None:
            self.first_piece_at = asyncio.get_running_loop().time()
        return shown

    def _take(self, result: dict[str, Any], shown: list[dict[str, Any]]) -> None:
        problem = result.get("error")
        if problem is not None:
            told = problem if isinstance(problem, dict) else {"message": str(problem)}
            status = told.get("status")
            raise self._redacted(failure_of(status if isinstance(status, int) and status >= 400 else None, told, {}))
        content, reasoning = self.answer.add(result)
        for kind, new in (("reasoning", reasoning), ("delta", content)):
            if not new:
                continue
            # Neighbours become one message on the bus.
            if shown and shown[-1]["type"] == kind:
                shown[-1]["text"] += new
            else:
                shown.append({"type": kind, "text": new})

    def _check_end(self, framing: Framing | None) -> None:
        if self.answer.is_empty:
            raise CallFailed(Fault.OTHER, text("provider.empty_answer"))
        is_complete = framing is not None and (framing.is_done or framing.is_whole or self.answer.finish_reason)
        self.is_partial = not is_complete
        if self.answer.finish_reason is None:
            self.answer.finish_reason = "stop" if is_complete else "error"

    async def _failure(self, response: Response) -> CallFailed:
        body = await response.read_error()
        told: Any = None
        try:
            made = await self._workers.perform(
                "error", self._source.adapter, version=self._version, status=response.status, body=body
            )
            told = json.loads(made["result"])
        except AdapterError:
            told = None
        return self._redacted(failure_of(response.status, told, response.headers))

    def _redacted(self, failure: CallFailed) -> CallFailed:
        failure.reason = self._redact(failure.reason)
        failure.args = (failure.reason,)
        return failure
