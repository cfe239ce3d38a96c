"""Calls that other peers make of this one: one task each, cancelled when the caller cancels or its deadline passes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import CallContext, Handler, Origin, StreamHandler
from homeagent_sdk.bus.context import current_deadline, current_trace
from homeagent_sdk.errors import Cancelled, HomeAgentError, Internal, Invalid, NotFound, Overloaded, TimedOut

MAX_SERVED = 1024
"""Calls answered at the same time; one more is refused with ``overloaded``."""
_MAX_EARLY_CANCELS = 1024

Send = Callable[[str, int, int, Any], None]
"""``send(kind, call id, number, value)``."""
_log = structlog.get_logger("bus")


class _Served:
    """One call being answered."""

    __slots__ = ("credit", "task", "wake")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Incoming:
    """The handlers of a peer and the calls that they are working on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._handlers: dict[str, Handler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._served: dict[int, _Served] = {}
        self._casts: set[asyncio.Task[None]] = set()
        self._early_cancels: OrderedDict[int, None] = OrderedDict()

    def serve(self, method: str, handler: Handler) -> None:
        """Answer a method."""
        self._handlers[method] = handler

    def serve_stream(self, method: str, handler: StreamHandler) -> None:
        """Answer a streaming method."""
        self._streams[method] = handler

    def take_call(self, header: wire.Header, frames: list[bytes]) -> None:
        """Begin to answer a call."""
        call_id = header.get("i", 0)
        if self._early_cancels.pop(call_id, 0) is None:
            self._refuse(call_id, Cancelled("cancelled before it began"))
        elif len(self._served) >= MAX_SERVED:
            self._refuse(call_id, Overloaded(f"{MAX_SERVED} calls are being answered already", hint="try again later"))
        else:
            served = _Served(header.get("n", 0))
            self._served[call_id] = served
            served.task = asyncio.create_task(self._answer(call_id, served, header, frames), name=str(header.get("m")))

    def take_cast(self, header: wire.Header, frames: list[bytes]) -> None:
        """Handle a cast; beyond the limit it is dropped with a log line, since nobody waits for it."""
        if len(self._casts) >= MAX_SERVED:
            _log.warning("cast dropped: too many at once", method=header.get("m"))
            return
        task = asyncio.create_task(self._handle_cast(header, frames), name=str(header.get("m")))
        self._casts.add(task)
        task.add_done_callback(self._casts.discard)

    def take_credit(self, call_id: int, number: int) -> None:
        """Let a stream go on."""
        served = self._served.get(call_id)
        if served is not None:
            served.credit = min(served.credit + number, wire.MAX_WINDOW)
            served.wake.set()

    def take_cancel(self, call_id: int) -> None:
        """Cancel a call; one that has not arrived yet is refused when it does (cancels overtake calls)."""
        served = self._served.get(call_id)
        if served is not None and served.task is not None:
            served.task.cancel()
        elif served is None:
            self._early_cancels[call_id] = None
            if len(self._early_cancels) > _MAX_EARLY_CANCELS:
                self._early_cancels.popitem(last=False)

    def cancel_all(self) -> None:
        """Cancel everything: the hub that passed these calls on is gone."""
        self._early_cancels.clear()
        for served in list(self._served.values()):
            if served.task is not None:
                served.task.cancel()

    def _refuse(self, call_id: int, error: HomeAgentError) -> None:
        self._send(wire.ERROR, call_id, 0, error.to_wire())

    def _context(self, header: wire.Header) -> CallContext:
        origin = header.get("o") or {}
        left_s = header.get("d", 0) / 1000 or wire.DEFAULT_DEADLINE_S
        context = CallContext(
            str(header.get("m", "")),
            Origin(str(origin.get("name", "")), str(origin.get("tier", "")), int(origin.get("generation", 0))),
            str(header.get("t", "")),
            asyncio.get_running_loop().time() + left_s,
        )
        current_deadline.set(context.deadline)
        current_trace.set(context.trace)
        return context

    async def _answer(self, call_id: int, served: _Served, header: wire.Header, frames: list[bytes]) -> None:
        context = self._context(header)
        try:
            async with asyncio.timeout_at(context.deadline):
                body = wire.decode_body(frames)
                if context.method in self._streams:
                    await self._answer_stream(call_id, served, context, body)
                elif context.method in self._handlers:
                    result = await self._handlers[context.method](body, context)
                    self._send(wire.REPLY, call_id, 0, result)
                else:
                    raise NotFound(f"nobody serves {context.method}")
        except TimeoutError:
            self._refuse(call_id, TimedOut(f"{context.method} was not done before its deadline"))
        except asyncio.CancelledError:
            self._refuse(call_id, Cancelled(f"{context.method} was cancelled"))
        except HomeAgentError as error:
            self._refuse(call_id, error)
        except wire.Malformed as error:
            self._refuse(call_id, Invalid(f"the body of {context.method} cannot be read: {error}"))
        except Exception:
            _log.exception("handler failed", method=context.method, trace=context.trace)
            self._refuse(call_id, Internal(f"{context.method} failed", hint=f"the log has more under {context.trace}"))
        finally:
            self._served.pop(call_id, None)

    async def _answer_stream(self, call_id: int, served: _Served, context: CallContext, body: Any) -> None:
        if served.credit == 0:
            raise Invalid(f"{context.method} streams its answer", hint="use stream() instead of call()")
        number = 0
        async with aclosing(self._streams[context.method](body, context)) as items:  # type: ignore[type-var]
            async for item in items:
                while served.credit == 0:
                    served.wake.clear()
                    await served.wake.wait()
                served.credit -= 1
                self._send(wire.NEXT, call_id, number, item)
                number += 1
        self._send(wire.END, call_id, number, None)

    async def _handle_cast(self, header: wire.Header, frames: list[bytes]) -> None:
        context = self._context(header)
        handler = self._handlers.get(context.method)
        if handler is None:
            _log.warning("cast dropped: nobody serves it", method=context.method)
            return
        try:
            await handler(wire.decode_body(frames), context)
        except HomeAgentError as error:
            _log.warning("cast failed", method=context.method, code=error.code, error=str(error), trace=context.trace)
        except Exception:
            _log.exception("cast failed", method=context.method, trace=context.trace)
