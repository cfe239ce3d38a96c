"""One answer from whichever source gives it: the order, the fallback, the accounting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import structlog

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Denied, HomeAgentError, Invalid, Overloaded, Unavailable
from provider_service.adapter_workers import AdapterWorkers
from provider_service.attempt import Attempt
from provider_service.chat_request import ChatRequest
from provider_service.errors import CallFailed, Fault
from provider_service.ledger import CallRecord
from provider_service.sources import SLOT_WAIT_S, Entry, Sources
from provider_service.upstream import Upstream

_log = structlog.get_logger("provider_service.chat")


@dataclass(slots=True)
class Chat:
    """Answers requests from the sources, in order.

    :param key_of: gives the key of a source
    :param redactor: gives what masks it in texts from outside
    :param record: takes the accounting of each call; must not block
    """

    sources: Sources
    key_of: Callable[[str], str | None]
    redactor: Callable[[str], Callable[[str], str]]
    workers: AdapterWorkers
    upstream: Upstream
    record: Callable[[CallRecord], None]

    async def answer(self, request: ChatRequest, deadline: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield ``start``, ``delta`` and ``reasoning`` items and, last, ``done``.

        A source that fails before its first text is followed by the next one, unseen but for a second ``start``
        where reasoning had been shown. One that fails later ends the answer, which is kept and marked ``partial``.

        :param deadline: when the caller stops waiting, on the clock of the loop
        :raises NotFound: no source has the model
        :raises Invalid: no source can take the request; ``detail.context_full`` if it is too long
        :raises Denied: all keys were refused
        :raises Overloaded: all sources stayed busy
        :raises Unavailable: no source answered, or there is none
        """
        failures: list[tuple[Entry, CallFailed]] = []
        deadline = min(deadline, asyncio.get_running_loop().time() + self.upstream.limits.total_s)
        for entry in self.sources.candidates(request.model, with_images=request.has_images):
            if _is_hopeless(entry, failures) or asyncio.get_running_loop().time() >= deadline:
                continue
            run = _Run(self, entry, request, deadline)
            try:
                async with aclosing(run.items()) as items:
                    async for item in items:
                        yield item
            except CallFailed as failure:
                failures.append((entry, failure))
                _log.info("source failed", source=entry.source.name, fault=failure.fault.value, reason=failure.reason)
            else:
                return
        raise self._error(failures)

    def _error(self, failures: list[tuple[Entry, CallFailed]]) -> HomeAgentError:
        """Return the error of a request that no source answered."""
        faults = {failure.fault for _, failure in failures}
        reasons = self.sources.reasons([(entry.source.name, failure) for entry, failure in failures])
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        detail: dict[str, Any] = {"sources": reasons}
        if not reasons:
            detail["reason"] = "no_source"
            return Unavailable(text("provider.no_source"), hint=text("provider.no_source_hint"), detail=detail)
        if Fault.CONTEXT in faults:
            windows = [e.source.context_window for e, failure in failures if failure.fault is Fault.CONTEXT]
            detail |= {"context_full": True, "context_window": max(windows)}
            return Invalid(text("provider.context_full", reasons=told), field="messages", detail=detail)
        if faults == {Fault.REQUEST}:
            return Invalid(text("provider.refused_request", reasons=told), detail=detail)
        if faults == {Fault.BUSY}:
            return Overloaded(text("provider.all_busy", reasons=told), hint=text("provider.wait_hint"), detail=detail)
        if all(entry.health.state == "bad_key" for entry in self.sources.in_order()):
            return Denied(text("provider.keys_refused", reasons=told), hint=text("provider.key_hint"), detail=detail)
        rest_s = self.sources.shortest_rest_s()
        detail |= {"reason": "all_sources_failed", "retry_after_s": None if rest_s is None else round(rest_s, 1)}
        return Unavailable(text("provider.all_failed", reasons=told), hint=text("provider.failed_hint"), detail=detail)


def _is_hopeless(entry: Entry, failures: list[tuple[Entry, CallFailed]]) -> bool:
    """Whether a prompt that was too long for one source is too long for this one as well."""
    windows = [e.source.context_window for e, failure in failures if failure.fault is Fault.CONTEXT]
    return bool(windows) and entry.source.context_window <= max(windows)


class _Run:
    """One source's turn at a request."""

    def __init__(self, chat: Chat, entry: Entry, request: ChatRequest, deadline: float) -> None:
        self._chat = chat
        self._entry = entry
        self._request = request
        self._source = entry.source
        self._attempt = Attempt(
            entry.source,
            request,
            key=chat.key_of(entry.source.name),
            redact=chat.redactor(entry.source.name),
            workers=chat.workers,
            upstream=chat.upstream,
            deadline=deadline,
        )
        self._deadline = deadline
        self._begun = asyncio.get_running_loop().time()

    async def items(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the items of the answer; raises :class:`CallFailed` if the next source should be asked."""
        wait_s = max(0.0, min(SLOT_WAIT_S, self._deadline - self._begun))
        async with self._entry.slots.take(wait_s):
            started = self._entry.health.starts()
            self._begun = asyncio.get_running_loop().time()
            outcome, status, has_started = "cancelled", None, False
            try:
                async with aclosing(self._attempt.pieces()) as pieces:
                    async for piece in pieces:
                        if not has_started:
                            yield self._start()
                            has_started = True
                        yield piece
                self._entry.health.succeeded()
                outcome = "partial" if self._attempt.is_partial else "ok"
            except CallFailed as failure:
                outcome, status = f"failed:{failure.fault.value}", failure.status
                self._entry.health.failed(failure, started)
                if not self._attempt.answer.has_content:
                    raise
                outcome = "partial"
                self._attempt.is_partial = True
                self._attempt.answer.finish_reason = "error"
            finally:
                self._record(outcome, status)
        if not has_started:
            yield self._start()
        yield self._done()

    def _start(self) -> dict[str, Any]:
        return {"type": "start", "source": self._source.name, "model": self._source.model}

    def _done(self) -> dict[str, Any]:
        answer, is_partial = self._attempt.answer, self._attempt.is_partial
        return {
            "type": "done",
            "message": answer.message(with_calls=not is_partial),
            "finish_reason": answer.finish_reason,
            "usage": self._usage(),
            "source": self._source.name,
            "model": self._source.model,
            "partial": is_partial,
        }

    def _usage(self) -> dict[str, Any]:
        answer = self._attempt.answer
        return answer.usage("" if answer.has_usage else self._request.text)

    def _record(self, outcome: str, status: int | None) -> None:
        now = asyncio.get_running_loop().time()
        counts = self._usage() if not outcome.startswith("failed") else dict.fromkeys(_COUNTS, 0) | {"reported": False}
        first = self._attempt.first_piece_at
        self._chat.record(
            CallRecord(
                time=time.time(),
                reason=self._request.reason,
                turn_id=self._request.turn_id,
                lane=self._request.lane,
                source=self._source.name,
                model=self._source.model,
                **{name: counts[name] for name in _COUNTS},
                reported=int(counts["reported"]),
                first_piece_ms=None if first is None else round((first - self._begun) * 1000, 2),
                ms=round((now - self._begun) * 1000, 2),
                outcome=outcome,
                status=status,
            )
        )


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens")
