"""A program's place on the bus: the real :class:`homeagent_sdk.bus.abc.BusPeer`, over ZeroMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import structlog
import zmq

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import EventHandler, Handler, StreamHandler
from homeagent_sdk.bus.allocator import keep_freed_memory
from homeagent_sdk.bus.context import current_trace, detached, new_trace, time_left
from homeagent_sdk.bus.credential import Credential
from homeagent_sdk.bus.events import EventIntake
from homeagent_sdk.bus.gate import Gate
from homeagent_sdk.bus.incoming import Incoming
from homeagent_sdk.bus.outgoing import IncomingStream, NeverSent, Outgoing, Pending
from homeagent_sdk.bus.session import Session, Welcome
from homeagent_sdk.bus.sockets import Endpoints, open_socket
from homeagent_sdk.bus.subscriber import EventSubscription
from homeagent_sdk.bus.uplink import RESERVE, Uplink
from homeagent_sdk.errors import (
    Cancelled,
    Conflict,
    HomeAgentError,
    Internal,
    Invalid,
    Overloaded,
    TimedOut,
    Unavailable,
)

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.02, 0.5
_STREAM_GRACE_S = 0.5
_BIND_AGAIN_S = 0.5
_REPLAY_TIMEOUT_S = 10.0
_LINGER_MS = 100
_log = structlog.get_logger("bus")


class Peer:
    """See :class:`homeagent_sdk.bus.abc.BusPeer` for what each method promises. A stopped peer cannot start again.

    :param run_dir: the directory with the hub's sockets
    :param credential: how this peer proves who it is
    :param context: a ZeroMQ context to share; by default the peer has its own
    :param endpoints: other sockets than those in ``run_dir``
    """

    def __init__(
        self,
        run_dir: Path,
        credential: Credential,
        *,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        endpoints: Endpoints | None = None,
    ) -> None:
        self._endpoints = endpoints or Endpoints.in_directory(run_dir)
        self._shared_context = context
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._outgoing = Outgoing()
        self._uplink = Uplink(self._endpoints, self._on_control, self._on_urgent, self._on_link)
        self._incoming = Incoming(self._send_answer, self._uplink.room)
        self._session = Session(credential, self._uplink.send_handshake, self._welcomed, self._lost)
        self._gate = Gate(self._session, self._uplink)
        self._intake = EventIntake(self._open_events, self._call_ring, lambda: self.epoch)
        self._welcome: Welcome | None = None
        self._callbacks: list[Callable[[], Awaitable[None]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._welcome_tasks: set[asyncio.Task[Any]] = set()
        """What a welcome has set going; cancelled when the hub is lost, since the next welcome begins it anew."""
        self._urgent_bound = asyncio.Event()

    @property
    def name(self) -> str:
        """The name under which the others reach this peer."""
        return self._welcome.name if self._welcome else ""

    @property
    def epoch(self) -> str | None:
        """The epoch of the hub that welcomed this peer last."""
        return self._welcome.epoch if self._welcome else None

    @property
    def is_welcome(self) -> bool:
        """Whether the hub knows this peer at the moment."""
        return self._session.is_welcome

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connect and be welcomed."""
        if self._uplink.is_open or self._gate.is_closed:
            raise Conflict("this peer was started before", hint="make a new one")
        keep_freed_memory()
        self._context = self._shared_context or zmq.Context()
        self._uplink.open(self._context)
        self._spawn(self._session.run(), "bus-session")
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_welcome:
                    refusal = self._session.refusal or self._session.replaced
                    if refusal is not None:
                        raise refusal
                    await self._session.changed()
        except TimeoutError as error:
            await self.stop()
            raise TimedOut(
                f"no kernel answered at {self._endpoints.control} in {timeout_s:g} s",
                hint="is HomeAgent running? `homeagent up` starts it",
            ) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Say bye and close; calls in flight end with ``cancelled``."""
        if not self._uplink.is_open or self._gate.is_closed:
            return
        self._gate.is_closed = True
        try:
            await self._incoming.stop()
            await self._intake.close(_LINGER_MS)
            if self.is_welcome:
                self._uplink.send_handshake(wire.BYE, None)
            self._session.lose("this peer is stopping")
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._uplink.close(_LINGER_MS)
            if self._shared_context is None and self._context is not None:
                await asyncio.to_thread(self._context.term)

    def on_welcome(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Run a callback after each welcome."""
        self._callbacks.append(callback)

    # -- calls --------------------------------------------------------------------------------------------------------

    def serve(self, method: str, handler: Handler) -> None:
        """Answer calls and casts of a method."""
        self._incoming.serve(_checked(method), handler)

    def serve_stream(self, method: str, handler: StreamHandler) -> None:
        """Answer streaming calls of a method."""
        self._incoming.serve_stream(_checked(method), handler)

    async def call(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, idempotent: bool = False
    ) -> Any:
        """Call a method and return its reply."""
        frames = wire.encode_body(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_left(timeout_s, _checked(method))
        pause_s = _FIRST_RETRY_S
        while True:
            try:
                return await self._call_once(method, frames, deadline)
            except NeverSent:
                continue
            except Unavailable as error:
                if not idempotent or not error.detail.get("bus") or loop.time() + pause_s >= deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_RETRY_S)

    def stream(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, window: int = wire.DEFAULT_WINDOW
    ) -> IncomingStream:
        """Call a streaming method."""
        frames = wire.encode_body(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_left(timeout_s, _checked(method))
        window = min(max(window, 1), wire.MAX_WINDOW)
        call_id = 0
        timer: asyncio.TimerHandle | None = None

        async def open_call() -> None:
            nonlocal call_id, timer
            await self._gate.passed(method, deadline)
            call_id = self._outgoing.next_id()
            self._outgoing.add(call_id, stream)
            self._send_call(call_id, method, frames, deadline, window)
            if timer is None:
                error = TimedOut(f"{method} was not done before its deadline")
                timer = loop.call_at(deadline + _STREAM_GRACE_S, stream.fail, error)

        def grant(count: int) -> None:
            self._uplink.send(wire.encode_header(wire.CREDIT, call_id=call_id, number=count), [], reserve=RESERVE)

        def closed(is_unfinished: bool) -> None:
            if timer is not None:
                timer.cancel()
            if call_id and is_unfinished:
                self._cancel(call_id)
            self._outgoing.forget(call_id)

        stream = IncomingStream(method, window, open_call, grant, closed)
        return stream

    async def cast(self, method: str, body: Any = None) -> None:
        """Send without asking for an answer."""
        frames = wire.encode_body(body)
        left_s = time_left(None, _checked(method))
        await self._gate.passed(method, asyncio.get_running_loop().time() + left_s)
        self._uplink.send(wire.encode_header(wire.CAST, method=method, trace=_trace()), frames)

    async def publish(self, topic: str, payload: Any = None) -> None:
        """Put an event on the ring."""
        await self.cast("hub.publish", {"topic": topic, "payload": wire.encode_event(topic, payload)})

    async def subscribe(self, topics: Iterable[str], handler: EventHandler) -> EventSubscription:
        """Deliver every event of the topics, once and in order."""
        if not self._uplink.is_open:
            raise Cancelled("nothing can be subscribed: this peer is not started")
        return await self._intake.subscribe(topics, handler)

    # -- what goes out ------------------------------------------------------------------------------------------------

    async def _call_once(self, method: str, frames: list[bytes], deadline: float) -> Any:
        await self._gate.passed(method, deadline)
        call_id = self._outgoing.next_id()
        pending = Pending(method)
        self._outgoing.add(call_id, pending)
        try:
            self._send_call(call_id, method, frames, deadline, 0)
            return await pending.wait(deadline - asyncio.get_running_loop().time())
        finally:
            if pending.needs_cancel:
                self._cancel(call_id)
            self._outgoing.forget(call_id)

    def _send_call(self, call_id: int, method: str, frames: list[bytes], deadline: float, window: int) -> None:
        left_ms = max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))
        header = wire.encode_header(
            wire.CALL,
            call_id=call_id,
            method=method,
            deadline_ms=min(left_ms, wire.MAX_DEADLINE_MS),
            trace=_trace(),
            number=window,
        )
        self._uplink.send(header, frames)

    def _send_answer(self, kind: str, call_id: int, number: int, value: Any) -> None:
        if not self._session.is_admitted:
            return  # the hub that asked is gone, and its successor does not know the call
        try:
            frames = wire.encode_body(value) if value is not None or kind in (wire.REPLY, wire.NEXT) else []
        except Invalid as error:
            _log.error("an answer cannot be sent", kind=kind, reason=error.message)
            failure = Internal(f"the answer cannot be sent: {error.message}", hint="this is an error of the callee")
            if kind != wire.ERROR:
                raise failure from error
            frames = wire.encode_body(failure.to_wire())
        try:
            self._uplink.send(wire.encode_header(kind, call_id=call_id, number=number), frames, reserve=RESERVE)
        except (Overloaded, Unavailable) as error:
            self._uplink.drop(f"an answer ({kind})", str(error))

    def _cancel(self, call_id: int) -> None:
        if self.is_welcome:
            self._uplink.send_urgent(wire.CANCEL, call_id)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _on_control(self, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[0])
            kind, call_id = header["k"], header.get("i", 0)
            if kind == wire.CALL:
                self._incoming.take_call(header, frames[1:])
            elif kind == wire.CAST:
                self._incoming.take_cast(header, frames[1:])
            elif kind == wire.CREDIT:
                self._incoming.take_credit(call_id, header.get("n", 0))
            elif kind == wire.CANCEL:
                self._incoming.take_cancel(call_id)
            elif call_id:
                self._take_answer(call_id, header, frames[1:])
            else:
                self._session.take(kind, wire.decode_body(frames[1:]))
        except wire.Malformed as error:
            _log.error("the hub sent a message that cannot be read", reason=str(error))

    def _take_answer(self, call_id: int, header: wire.Header, frames: list[bytes]) -> None:
        """Hand an answer to its call; one that cannot be read ends it."""
        kind = header["k"]
        try:
            value = wire.decode_body(frames)
        except wire.Malformed as error:
            self._outgoing.fail([call_id], Internal(f"the answer cannot be read: {error}"))
            if kind == wire.NEXT:
                self._cancel(call_id)
        else:
            self._outgoing.take(call_id, kind, header.get("n", 0), value)

    def _on_urgent(self, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[0])
        except wire.Malformed as error:
            _log.error("the hub sent a message that cannot be read", reason=str(error))
            return
        if header["k"] == wire.PING:
            self._uplink.send_urgent(wire.PONG, header.get("i", 0))
        elif header["k"] == wire.CANCEL:
            self._incoming.take_cancel(header.get("i", 0))
        elif header["k"] == wire.WELCOME:
            self._urgent_bound.set()

    def _on_link(self, is_up: bool) -> None:
        if is_up:
            self._session.link_up()
        else:
            self._session.link_down()

    # -- joining and losing the hub -----------------------------------------------------------------------------------

    async def _welcomed(self, welcome: Welcome) -> None:
        self._welcome = welcome
        self._intake.begin_epoch(welcome.epoch)
        self._urgent_bound.clear()
        self._uplink.send_urgent(wire.HELLO, 0, {"session": welcome.session})
        self._welcome_tasks = {
            self._spawn(self._bind_urgent(welcome), "bus-bind-urgent"),
            self._spawn(self._intake.catch_up(welcome.epoch), "bus-resume-events"),
            *(self._spawn(self._run_callback(callback), "bus-on-welcome") for callback in self._callbacks),
        }

    async def _bind_urgent(self, welcome: Welcome) -> None:
        """Tell the hub again which connection of its urgent socket is this peer's, until it says that it knows."""
        while self._welcome is welcome and self.is_welcome:
            try:
                async with asyncio.timeout(_BIND_AGAIN_S):
                    await self._urgent_bound.wait()
                return
            except TimeoutError:
                _log.info("the urgent socket is not bound yet")
                self._uplink.send_urgent(wire.HELLO, 0, {"session": welcome.session})

    async def _run_callback(self, callback: Callable[[], Awaitable[None]]) -> None:
        try:
            await callback()
        except HomeAgentError as error:
            _log.error("what had to be done after the welcome failed", error=str(error), code=error.code)
        except Exception:
            _log.exception("what had to be done after the welcome failed")

    def _lost(self, reason: str) -> None:
        _log.info("the kernel is lost", reason=reason)
        for task in self._welcome_tasks - {asyncio.current_task()}:
            task.cancel()
        self._welcome_tasks.clear()
        unsent = self._uplink.forget_queues(reason)
        if self._gate.is_closed:
            self._outgoing.fail_all(Cancelled(f"the call ended: {reason}"))
        else:
            self._outgoing.fail(unsent, NeverSent(reason, detail={"bus": True, "sent": False}))
            self._outgoing.fail_all(_unavailable(reason, sent=True))
        self._incoming.cancel_all()

    async def _call_ring(self, method: str, body: Any) -> Any:
        return await self.call(method, body, timeout_s=_REPLAY_TIMEOUT_S, idempotent=True)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name, context=detached())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _open_events(self) -> zmq.Socket[bytes]:
        assert self._context is not None
        socket = open_socket(self._context, zmq.SUB)
        socket.connect(self._endpoints.events)
        return socket


def _checked(method: str) -> str:
    if not wire.is_method(method):
        raise Invalid(f"{method!r} is not a method name", hint="methods are <peer>.<verb> in lower case")
    return method


def _trace() -> str:
    return current_trace.get() or new_trace()


def _unavailable(message: str, *, sent: bool) -> Unavailable:
    return Unavailable(message, hint="it is restarting; try again", detail={"bus": True, "sent": sent})
