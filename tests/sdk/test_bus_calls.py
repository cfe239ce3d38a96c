"""Both ends of a call inside one process: the table of handlers, the table of calls, and what travels with them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from homeagent_sdk.bus import CallContext, wire
from homeagent_sdk.bus.context import current_scope, current_trace, detached, time_left
from homeagent_sdk.bus.incoming import MAX_SERVED, Incoming
from homeagent_sdk.bus.outgoing import MAX_PENDING, IncomingStream, NeverSent, Outgoing, Pending
from homeagent_sdk.errors import Cancelled, HomeAgentError, Internal, Invalid, NotFound, Overloaded, TimedOut


class Answers:
    """Collects what an :class:`Incoming` sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, int, Any]] = []
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.incoming = Incoming(self._send, self._room)

    def _send(self, kind: str, call_id: int, number: int, value: Any) -> None:
        if value == "unsendable":
            raise Internal("the answer cannot be sent")
        self.sent.append((kind, call_id, number, value))

    async def _room(self) -> None:
        await self.has_room.wait()

    def call(self, call_id: int, method: str, *, d: int = 0, n: int = 0, t: str = "trace") -> None:
        header = {"v": 1, "k": "call", "i": call_id, "m": method, "d": d, "n": n, "t": t, "o": {"name": "kernel"}}
        self.incoming.take_call(header, wire.encode_body(call_id))

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    def codes(self) -> list[tuple[int, str]]:
        return [(call_id, value["code"]) for kind, call_id, _, value in self.sent if kind == "error"]


@pytest.fixture
async def answers() -> AsyncIterator[Answers]:
    answers = Answers()
    yield answers
    await answers.incoming.stop()


# -- answering --------------------------------------------------------------------------------------------------------


async def test_a_handler_gets_body_and_context_and_its_value_is_the_reply(answers: Answers) -> None:
    async def handle(body: Any, call: CallContext) -> Any:
        left = call.deadline - asyncio.get_running_loop().time()
        return [body, call.method, call.origin.name, call.trace, 0 < left <= 5]

    answers.incoming.serve("echo.tool", handle)
    answers.call(7, "echo.tool", d=5000)
    await answers.settle()
    assert answers.sent == [("reply", 7, 0, [7, "echo.tool", "kernel", "trace", True])]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Invalid("no"), "invalid"),
        (ZeroDivisionError("secret"), "internal"),
        (TimeoutError("of something inside"), "internal"),
        (MemoryError(), "internal"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
async def test_every_end_of_a_handler_is_an_answer(answers: Answers, error: BaseException, code: str) -> None:
    async def fail(body: Any, call: CallContext) -> Any:
        raise error

    answers.incoming.serve("echo.tool", fail)
    answers.call(1, "echo.tool")
    answers.call(2, "echo.none")
    await answers.settle()
    assert sorted(answers.codes()) == [(1, code), (2, "not_found")]
    assert "secret" not in str(answers.sent)


async def test_a_handler_out_of_time_is_cancelled_and_answers_timeout(answers: Answers) -> None:
    cleaned = asyncio.Event()

    async def hang(body: Any, call: CallContext) -> Any:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    answers.incoming.serve("echo.tool", hang)
    answers.call(1, "echo.tool", d=20)
    await asyncio.wait_for(cleaned.wait(), 2)
    await answers.settle()
    assert answers.codes() == [(1, "timeout")]


async def test_a_value_that_cannot_be_sent_is_an_internal_error(answers: Answers) -> None:
    async def handle(body: Any, call: CallContext) -> Any:
        return "unsendable"

    answers.incoming.serve("echo.tool", handle)
    answers.call(1, "echo.tool")
    await answers.settle()
    assert answers.codes() == [(1, "internal")]


async def test_a_body_that_cannot_be_read_is_invalid(answers: Answers) -> None:
    async def handle(body: Any, call: CallContext) -> Any:
        return body

    answers.incoming.serve("echo.tool", handle)
    answers.incoming.take_call({"v": 1, "k": "call", "i": 1, "m": "echo.tool"}, [b"\xc1"])
    await answers.settle()
    assert answers.codes() == [(1, "invalid")]


async def test_no_more_than_the_limit_is_answered_at_once(answers: Answers) -> None:
    release = asyncio.Event()

    async def wait(body: Any, call: CallContext) -> Any:
        await release.wait()

    answers.incoming.serve("echo.tool", wait)
    for number in range(MAX_SERVED + 2):
        answers.call(number + 1, "echo.tool")
    assert answers.codes() == [(MAX_SERVED + 1, "overloaded"), (MAX_SERVED + 2, "overloaded")]
    answers.incoming.take_cast({"v": 1, "k": "cast", "m": "echo.tool"}, [])
    assert answers.incoming.dropped_casts == 1
    release.set()
    await answers.settle()
    assert sum(kind == "reply" for kind, *_ in answers.sent) == MAX_SERVED


async def test_a_cancel_that_comes_first_is_remembered_once_and_not_for_ever(answers: Answers) -> None:
    async def handle(body: Any, call: CallContext) -> Any:
        return body

    answers.incoming.serve("echo.tool", handle)
    answers.incoming.take_cancel(5)
    answers.call(5, "echo.tool")
    for number in range(5000):
        answers.incoming.take_cancel(number + 10)
    assert len(answers.incoming._early_cancels) <= 1024
    answers.call(10, "echo.tool")
    await answers.settle()
    assert answers.sent[0][:2] == ("error", 5)
    assert answers.sent[1][:2] == ("reply", 10)


async def test_an_orphan_answers_nobody_even_if_its_id_is_given_to_another_call(answers: Answers) -> None:
    release, started = asyncio.Event(), asyncio.Event()

    async def handle(body: Any, call: CallContext) -> Any:
        if started.is_set():
            return "new"
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await release.wait()
        return "old"

    answers.incoming.serve("echo.tool", handle)
    answers.call(1, "echo.tool")
    await started.wait()
    answers.incoming.cancel_all()  # the hub is gone
    await answers.settle()
    answers.call(1, "echo.tool")  # its successor counts from 1 again
    release.set()
    await answers.settle()
    assert answers.sent == [("reply", 1, 0, "new")]


async def test_after_stop_nothing_is_begun(answers: Answers) -> None:
    answers.call(1, "echo.tool")
    await answers.incoming.stop()
    answers.call(2, "echo.tool")
    assert (2, "unavailable") in answers.codes()


# -- streams, the writer's side ---------------------------------------------------------------------------------------


async def count(body: Any, call: CallContext) -> AsyncIterator[int]:
    for number in range(6):
        yield number


async def test_a_writer_sends_no_more_than_it_was_granted(answers: Answers) -> None:
    answers.incoming.serve_stream("echo.stream", count)
    answers.call(1, "echo.stream", n=2)
    await answers.settle()
    assert [entry[2] for entry in answers.sent] == [0, 1]
    answers.incoming.take_credit(1, 3)
    await answers.settle()
    assert [entry[2] for entry in answers.sent] == [0, 1, 2, 3, 4]
    answers.incoming.take_credit(1, 2**62)
    await answers.settle()
    assert answers.sent[-1] == ("end", 1, 6, None)


async def test_a_writer_waits_for_room_on_the_way(answers: Answers) -> None:
    answers.has_room.clear()
    answers.incoming.serve_stream("echo.stream", count)
    answers.call(1, "echo.stream", n=64)
    await answers.settle()
    assert answers.sent == []
    answers.has_room.set()
    await answers.settle()
    assert len(answers.sent) == 7


async def test_an_item_that_cannot_be_sent_ends_the_stream_with_an_error(answers: Answers) -> None:
    async def items(body: Any, call: CallContext) -> AsyncIterator[Any]:
        yield 1
        yield "unsendable"

    answers.incoming.serve_stream("echo.stream", items)
    answers.call(1, "echo.stream", n=64)
    await answers.settle()
    assert [entry[0] for entry in answers.sent] == ["next", "error"]


# -- calling ----------------------------------------------------------------------------------------------------------


async def test_there_is_a_limit_to_calls_under_way() -> None:
    outgoing = Outgoing()
    for _ in range(MAX_PENDING):
        outgoing.add(outgoing.next_id(), Pending("a.b"))
    with pytest.raises(Overloaded):
        outgoing.next_id()
    outgoing.fail_all(Cancelled("over"))
    assert len(outgoing) == 0


async def test_late_answers_are_counted() -> None:
    outgoing = Outgoing()
    outgoing.take(99, wire.REPLY, 0, "late")
    assert outgoing.late_answers == 1


async def test_an_answer_after_the_hubs_silence_is_a_timeout_that_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homeagent_sdk.bus.outgoing._GRACE_S", 0.01)
    pending = Pending("a.b")
    with pytest.raises(TimedOut):
        await pending.wait(0.01)
    assert pending.needs_cancel


async def test_an_error_that_arrives_while_the_caller_is_cancelled_is_no_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    pending = Pending("a.b")
    task = asyncio.create_task(pending.wait(5))
    await asyncio.sleep(0)
    pending.fail(Internal("too late"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del pending, task
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


class Stream:
    """An :class:`IncomingStream` and what it asks of the hub."""

    def __init__(self, window: int = 4) -> None:
        self.opened = 0
        self.granted: list[int] = []
        self.closed: list[bool] = []
        self.stream = IncomingStream("a.b", window, self._open, self.granted.append, self.closed.append)

    async def _open(self) -> None:
        self.opened += 1

    async def read(self) -> list[Any]:
        return [item async for item in self.stream]


async def test_credit_is_granted_as_items_are_read() -> None:
    wanted = Stream()
    reading = asyncio.create_task(wanted.read())
    await asyncio.sleep(0)
    for number in range(8):
        wanted.stream.take(wire.NEXT, number, number)
        await asyncio.sleep(0)
    wanted.stream.take(wire.END, 8, None)
    assert await reading == list(range(8))
    assert sum(wanted.granted) >= 6
    assert wanted.closed == [False]


async def test_a_writer_that_sends_beyond_its_credit_is_cut_off_and_cancelled() -> None:
    wanted = Stream(window=4)
    assert [wanted.stream.take(wire.NEXT, number, number) for number in range(5)] == [False] * 4 + [True]
    received = []
    with pytest.raises(Overloaded, match="more than it was granted"):
        async for item in wanted.stream:
            received.append(item)  # noqa: PERF401 - what came before the error is the point
    assert received == [0, 1, 2, 3]
    assert wanted.closed == [True]


async def test_a_missing_item_ends_the_stream_and_cancels_the_writer() -> None:
    wanted = Stream()
    wanted.stream.take(wire.NEXT, 0, 0)
    assert wanted.stream.take(wire.NEXT, 2, 2)
    with pytest.raises(Internal, match=r"item 1 .* is missing"):
        await wanted.read()
    assert wanted.closed == [True]


async def test_closing_a_stream_wakes_whoever_iterates_over_it() -> None:
    wanted = Stream()
    reading = asyncio.create_task(wanted.read())
    await asyncio.sleep(0)
    await wanted.stream.aclose()
    with pytest.raises(Cancelled):
        await asyncio.wait_for(reading, 1)
    assert wanted.closed == [True]


async def test_a_stream_is_read_once() -> None:
    wanted = Stream()
    wanted.stream.take(wire.END, 0, None)
    assert await wanted.read() == []
    with pytest.raises(Cancelled):
        await wanted.read()
    assert wanted.opened == 1
    unread = Stream()
    await unread.stream.aclose()
    with pytest.raises(Cancelled):
        await unread.read()
    assert unread.opened == 0


async def test_a_stream_that_never_left_is_opened_again() -> None:
    wanted = Stream()
    reading = asyncio.create_task(wanted.read())
    await asyncio.sleep(0)
    wanted.stream.fail(NeverSent("the kernel is gone"))
    while wanted.opened < 2:  # noqa: ASYNC110 - a turn of the loop or two
        await asyncio.sleep(0)
    wanted.stream.take(wire.NEXT, 0, "item")
    wanted.stream.take(wire.END, 1, None)
    assert await reading == ["item"]


# -- deadline and trace -----------------------------------------------------------------------------------------------


async def test_what_a_handler_calls_has_no_more_time_than_the_handler(answers: Answers) -> None:
    left: list[float] = []

    async def handle(body: Any, call: CallContext) -> Any:
        left.append(time_left(60, "a.b"))
        left.extend(await asyncio.gather(asyncio.to_thread(lambda: 1.0), inner()))
        with pytest.raises(TimedOut):
            time_left(0, "a.b")

    async def inner() -> float:
        return time_left(None, "a.b")

    answers.incoming.serve("echo.tool", handle)
    answers.call(1, "echo.tool", d=500)
    while not answers.sent:  # noqa: ASYNC110 - a thread is under way
        await asyncio.sleep(0.001)
    assert left[0] <= 0.5
    assert left[2] <= 0.5


async def test_a_task_left_behind_by_a_handler_is_free_of_its_deadline(answers: Answers) -> None:
    left: asyncio.Future[tuple[float, str]] = asyncio.get_running_loop().create_future()
    answered = asyncio.Event()

    async def background() -> None:
        await answered.wait()
        left.set_result((time_left(120, "provider.chat"), current_trace.get()))

    tasks = set()

    async def handle(body: Any, call: CallContext) -> Any:
        tasks.add(asyncio.create_task(background()))

    answers.incoming.serve("kernel.submit", handle)
    answers.call(1, "kernel.submit", d=50)
    await answers.settle()
    answered.set()
    assert await left == (120, "trace")


async def test_neither_deadline_nor_trace_leak_to_other_tasks(answers: Answers) -> None:
    async def handle(body: Any, call: CallContext) -> Any:
        await asyncio.sleep(0)
        return current_trace.get()

    answers.incoming.serve("echo.tool", handle)
    for number in range(20):
        answers.call(number + 1, "echo.tool", d=50, t=f"trace-{number}")
    await answers.settle()
    assert [entry[3] for entry in answers.sent] == [f"trace-{number}" for number in range(20)]
    assert current_trace.get() == ""
    assert current_scope.get() is None
    assert time_left(None, "a.b") == 60


async def test_a_detached_context_knows_neither() -> None:
    current_trace.set("mine")
    context = detached()
    assert context.run(current_trace.get) == ""
    assert current_trace.get() == "mine"
    current_trace.set("")


async def test_an_unknown_method_is_not_found(answers: Answers) -> None:
    answers.call(1, "echo.none")
    await answers.settle()
    assert issubclass(NotFound, HomeAgentError)
    assert answers.codes() == [(1, "not_found")]
