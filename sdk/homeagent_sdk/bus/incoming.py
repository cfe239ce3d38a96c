"""Calls that other peers make of this one: one task each, cancelled when the caller cancels or its deadline passes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import structlog

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import CallContext, Handler, Origin, StreamHandler
from homeagent_sdk.bus.context import CallScope, current_scope, current_trace, detached
from homeagent_sdk.errors import (
    Cancelled,
    HomeAgentError,
    Internal,
    Invalid,
    NotFound,
    Overloaded,
    TimedOut,
    Unavailable,
)

MAX_SERVED = 1024
"""Calls answered at the same time; one more is refused with ``overloaded``."""
_MAX_EARLY_CANCELS = 1024
_STOP_S = 2.0

Send = Callable[[str, int, int, Any], None]
"""``send(kind, call id, number, value)``."""
_log = structlog.get_logger("bus")


class _Served:
    """One call being answered."""

    __slots__ = ("call_id", "credit", "is_orphan", "task", "wake")

    def __init__(self, call_id: int, credit: int) -> None:
        self.call_id = call_id
        self.credit = min(credit, wire.MAX_WINDOW)
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.is_orphan = False
        """The hub that passed the call on is gone, and its successor uses the same ids for other calls."""


class Incoming:
    """The handlers of a peer and the calls that they are working on.

    :param send: sends an answer; raises only :class:`Internal`, when the value cannot be sent
    :param room: awaited before every item of a stream, so that a slow hub slows the writer
    """

    def __init__(self, send: Send, room: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._room = room
        self._handlers: dict[str, Handler] = {}
        self._streams: dict[str, StreamHandler] = {}
        self._served: dict[int, _Served] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._early_cancels: OrderedDict[int, None] = OrderedDict()
        self._is_stopping = False
        self.dropped_casts = 0

    def serve(self, method: str, handler: Handler) -> None:
        """Answer a method."""
        self._handlers[method] = handler

    def serve_stream(self, method: str, handler: StreamHandler) -> None:
        """Answer a streaming method."""
        self._streams[method] = handler

    def take_call(self, header: wire.Header, frames: list[bytes]) -> None:
        """Begin to answer a call."""
        call_id = header.get("i", 0)
        served = _Served(call_id, header.get("n", 0))
        if self._early_cancels.pop(call_id, 0) is None:
            self._refuse(served, Cancelled("cancelled before it began"))
        elif self._is_stopping:
            self._refuse(served, Unavailable(f"{header.get('m')} was not begun: its peer is stopping"))
        elif len(self._tasks) >= MAX_SERVED:
            self._refuse(served, Overloaded(f"{MAX_SERVED} calls are being answered already", hint="try again later"))
        else:
            self._served[call_id] = served
            served.task = self._spawn(self._answer(served, header, frames), header)

    def take_cast(self, header: wire.Header, frames: list[bytes]) -> None:
        """Handle a cast; beyond the limit it is dropped with a log line, since nobody waits for it."""
        if len(self._tasks) >= MAX_SERVED or self._is_stopping:
            self.dropped_casts += 1
            _log.warning(
                "cast dropped: too many at once, or stopping", method=header.get("m"), total=self.dropped_casts
            )
        else:
            self._spawn(self._handle_cast(header, frames), header)

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
        """Cancel every call: the hub that passed them on is gone, and nobody would take the answers."""
        self._early_cancels.clear()
        for served in self._served.values():
            served.is_orphan = True
            if served.task is not None:
                served.task.cancel()
        self._served.clear()

    async def stop(self) -> None:
        """Cancel everything, and give it two seconds to clean up."""
        self._is_stopping = True
        self.cancel_all()
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=_STOP_S)
            if hanging:
                _log.warning("handlers do not end when cancelled", methods=sorted(task.get_name() for task in hanging))

    def _spawn(self, work: Any, header: wire.Header) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=str(header.get("m")), context=detached())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _say(self, served: _Served, kind: str, number: int, value: Any) -> None:
        if not served.is_orphan:
            self._send(kind, served.call_id, number, value)

    def _refuse(self, served: _Served, error: HomeAgentError) -> None:
        self._say(served, wire.ERROR, 0, error.to_wire())

    def _enter(self, header: wire.Header) -> tuple[CallContext, CallScope]:
        origin = header.get("o") or {}
        left_s = header.get("d", 0) / 1000 or wire.DEFAULT_DEADLINE_S
        context = CallContext(
            str(header.get("m", "")),
            Origin(str(origin.get("name", "")), str(origin.get("tier", "")), int(origin.get("generation", 0))),
            str(header.get("t", "")),
            asyncio.get_running_loop().time() + left_s,
        )
        scope = CallScope(context.deadline)
        current_scope.set(scope)
        current_trace.set(context.trace)
        return context, scope

    async def _answer(self, served: _Served, header: wire.Header, frames: list[bytes]) -> None:
        context, scope = self._enter(header)
        limit = asyncio.timeout_at(context.deadline)
        try:
            async with limit:
                await self._work(served, context, wire.decode_body(frames))
        except asyncio.CancelledError:
            self._refuse(served, Cancelled(f"{context.method} was cancelled"))
        except HomeAgentError as error:
            self._refuse(served, error)
        except wire.Malformed as error:
            self._refuse(served, Invalid(f"the body of {context.method} cannot be read: {error}"))
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                self._refuse(served, TimedOut(f"{context.method} was not done before its deadline"))
            else:
                _log.exception("handler failed", method=context.method, trace=context.trace)
                hint = f"the log has more under {context.trace}"
                self._refuse(served, Internal(f"{context.method} failed", hint=hint))
        finally:
            scope.lift()
            if self._served.get(served.call_id) is served:
                del self._served[served.call_id]

    async def _work(self, served: _Served, context: CallContext, body: Any) -> None:
        if context.method in self._streams:
            await self._answer_stream(served, context, body)
        elif context.method in self._handlers:
            self._say(served, wire.REPLY, 0, await self._handlers[context.method](body, context))
        else:
            raise NotFound(f"nobody serves {context.method}")

    async def _answer_stream(self, served: _Served, context: CallContext, body: Any) -> None:
        if served.credit == 0:
            raise Invalid(f"{context.method} streams its answer", hint="use stream() instead of call()")
        number = 0
        async with aclosing(self._streams[context.method](body, context)) as items:  # type: ignore[type-var]
            async for item in items:
                while served.credit == 0:
                    served.wake.clear()
                    await served.wake.wait()
                await self._room()
                served.credit -= 1
                self._say(served, wire.NEXT, number, item)
                number += 1
        self._say(served, wire.END, number, None)

    async def _handle_cast(self, header: wire.Header, frames: list[bytes]) -> None:
        context, scope = self._enter(header)
        handler = self._handlers.get(context.method)
        if handler is None:
            _log.warning("cast dropped: nobody serves it", method=context.method)
            return
        try:
            async with asyncio.timeout_at(context.deadline):
                await handler(wire.decode_body(frames), context)
        except HomeAgentError as error:
            _log.warning("cast failed", method=context.method, code=error.code, error=str(error), trace=context.trace)
        except Exception:
            _log.exception("cast failed", method=context.method, trace=context.trace)
        finally:
            scope.lift()
