"""Calls that this peer has made and that are not answered yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import (
    Cancelled,
    HomeAgentError,
    Internal,
    Invalid,
    Overloaded,
    TimedOut,
    Unavailable,
    from_wire,
)

MAX_PENDING = 4096
_GRACE_S = 0.5
"""How much longer than the deadline this side waits: the hub answers first, with better words."""


class NeverSent(Unavailable):
    """Raised inside the sdk when a call did not leave this process, so that sending it again is always right."""


class Pending:
    """One call on its way to a single answer."""

    __slots__ = ("answer", "method", "needs_cancel")

    def __init__(self, method: str) -> None:
        self.method = method
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.needs_cancel = False
        """Whether the callee goes on although this side is done with it."""

    def take(self, kind: str, number: int, value: Any) -> bool:
        """Accept a message for this call; True when it was the last."""
        if kind == wire.REPLY:
            if not self.answer.done():
                self.answer.set_result(value)
        elif kind == wire.ERROR:
            self.fail(from_wire(value))
        else:
            self.needs_cancel = kind == wire.NEXT
            self.fail(Invalid(f"{self.method} streams its answer", hint="use stream() instead of call()"))
        return True

    def fail(self, error: HomeAgentError) -> None:
        """End the call from this side."""
        if not self.answer.done():
            self.answer.set_exception(error)

    async def wait(self, time_left_s: float) -> Any:
        """Wait for the answer, a little longer than the deadline: then the hub is silent, too.

        :raises HomeAgentError: the error that the callee or the hub answered, or that there was no answer
        """
        timer = asyncio.get_running_loop().call_later(time_left_s + _GRACE_S, self._expire)
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.needs_cancel = True
            raise
        finally:
            timer.cancel()
            if self.answer.done() and not self.answer.cancelled():
                self.answer.exception()  # an error that came while the caller was being cancelled is no news

    def _expire(self) -> None:
        self.needs_cancel = True
        self.fail(TimedOut(f"{self.method} was not answered before its deadline"))


class IncomingStream:
    """Items of a streaming call, in order; grants the writer more as they are read.

    :param open_call: sends the call; awaited when iteration begins
    :param send_credit: tells the hub how many more items may come
    :param on_close: called once, with True when the callee may still work and has to be cancelled
    """

    def __init__(
        self,
        method: str,
        window: int,
        open_call: Callable[[], Awaitable[None]],
        send_credit: Callable[[int], None],
        on_close: Callable[[bool], None],
    ) -> None:
        self.method = method
        self._open_call = open_call
        self._window = window
        self._send_credit = send_credit
        self._on_close = on_close
        self._items: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._expected = 0
        self._read_since_grant = 0
        self._is_begun = False
        self._is_over = False
        self._is_closed = False
        self._is_ended_by_callee = False
        self._error: HomeAgentError | None = None

    def take(self, kind: str, number: int, value: Any) -> bool:
        """Accept a message for this call; True when it was the last."""
        if kind == wire.NEXT:
            return self._take_item(number, value)
        self._is_ended_by_callee = True
        if kind == wire.ERROR:
            self.fail(from_wire(value))
        elif kind == wire.REPLY:
            self.fail(Invalid(f"{self.method} does not stream", hint="use call() instead of stream()"))
        else:
            self._is_over = True
            self._wake.set()
        return True

    def _take_item(self, number: int, value: Any) -> bool:
        if number != self._expected:
            self.fail(Internal(f"item {self._expected} of the stream {self.method} is missing"))
            return True
        if len(self._items) >= self._window:
            self.fail(Overloaded(f"{self.method} sent more than it was granted"))
            return True
        self._expected += 1
        self._items.append(value)
        self._wake.set()
        return False

    def fail(self, error: HomeAgentError) -> None:
        """End the stream; what has arrived is still delivered first."""
        if not self._is_over:
            self._error = error
            self._is_over = True
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the items.

        :raises Cancelled: the stream was read, or closed, already
        """
        if self._is_begun or self._is_closed:
            raise Cancelled(f"the stream {self.method} was read or closed before", hint="call stream() again")
        self._is_begun = True
        try:
            await self._open_call()
            while True:
                while self._items:
                    item = self._items.popleft()
                    self._grant()
                    yield item
                if not self._is_over:
                    self._wake.clear()
                    await self._wake.wait()
                elif isinstance(self._error, NeverSent) and not self._is_closed:
                    self._is_over, self._error = False, None
                    await self._open_call()
                else:
                    break
            if self._error is not None:
                raise self._error
        finally:
            self._close()

    def _grant(self) -> None:
        self._read_since_grant += 1
        if self._read_since_grant * 2 >= self._window and not self._is_over:
            self._send_credit(self._read_since_grant)
            self._read_since_grant = 0

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._on_close(not self._is_ended_by_callee)
            self.fail(Cancelled(f"the stream {self.method} was closed"))

    async def aclose(self) -> None:
        """Stop listening; the callee's task is cancelled, and whoever still iterates gets ``cancelled``."""
        self._items.clear()
        self._close()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        await self.aclose()


class Outgoing:
    """The table of calls under way, by the id that this peer gave them."""

    def __init__(self) -> None:
        self._calls: dict[int, Pending | IncomingStream] = {}
        self._last_id = 0
        self.late_answers = 0
        """Answers that came after their caller had stopped waiting; they are dropped and counted."""

    def __len__(self) -> int:
        return len(self._calls)

    def next_id(self) -> int:
        """Return an id for a new call.

        :raises Overloaded: too many calls are under way
        """
        if len(self._calls) >= MAX_PENDING:
            raise Overloaded(f"{MAX_PENDING} calls are under way already", hint="wait for some of them")
        self._last_id += 1
        return self._last_id

    def add(self, call_id: int, call: Pending | IncomingStream) -> None:
        """Expect answers to a call."""
        self._calls[call_id] = call

    def forget(self, call_id: int) -> None:
        """Stop expecting answers to a call."""
        self._calls.pop(call_id, None)

    def take(self, call_id: int, kind: str, number: int, value: Any) -> None:
        """Hand an answer to its call."""
        call = self._calls.get(call_id)
        if call is None:
            self.late_answers += 1
        elif call.take(kind, number, value):
            self._calls.pop(call_id, None)

    def fail(self, call_ids: Iterable[int], error: HomeAgentError) -> None:
        """End some calls."""
        for call_id in call_ids:
            call = self._calls.pop(call_id, None)
            if call is not None:
                call.fail(error)

    def fail_all(self, error: HomeAgentError) -> None:
        """End every call: the hub that knew them is gone."""
        self.fail(list(self._calls), error)
