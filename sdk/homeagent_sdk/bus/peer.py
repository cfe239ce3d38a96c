"""A program's place on the bus: the real :class:`homeagent_sdk.bus.abc.BusPeer`, over ZeroMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from homeagent_sdk.bus import wire
from homeagent_sdk.bus.abc import Event, EventHandler, Handler, StreamHandler
from homeagent_sdk.bus.context import current_trace, new_trace, time_left
from homeagent_sdk.bus.credential import Credential
from homeagent_sdk.bus.incoming import Incoming
from homeagent_sdk.bus.link import Link
from homeagent_sdk.bus.outgoing import IncomingStream, Outgoing, Pending, wait_for
from homeagent_sdk.bus.session import Session, Welcome
from homeagent_sdk.bus.subscriber import HEARTBEAT, EventSubscription
from homeagent_sdk.errors import Cancelled, Denied, HomeAgentError, Invalid, Overloaded, TimedOut, Unavailable

_MAX_WAITING = 1024
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.02, 0.5
_STREAM_GRACE_S = 0.5
_log = structlog.get_logger("bus")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the hub's three sockets are."""

    control: str
    urgent: str
    events: str

    @classmethod
    def in_directory(cls, run_dir: Path) -> Endpoints:
        """Return the endpoints of the Unix sockets in a run directory."""
        return cls(*(f"ipc://{run_dir / name}.sock" for name in ("control", "urgent", "events")))


class Peer:
    """See :class:`homeagent_sdk.bus.abc.BusPeer` for what each method promises.

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
        self._owns_context = context is None
        self._context: zmq.Context[zmq.Socket[bytes]] = context or zmq.Context()
        self._outgoing = Outgoing()
        self._incoming = Incoming(self._send_answer)
        self._session = Session(credential, self._send_handshake, self._welcomed, self._lost)
        self._welcome: Welcome | None = None
        self._callbacks: list[Callable[[], Awaitable[None]]] = []
        self._subscriptions: list[EventSubscription] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting = 0
        self._control: Link | None = None
        self._urgent: Link | None = None
        self._events: Link | None = None
        self._monitor: Link | None = None
        self._events_socket: zmq.Socket[bytes] | None = None

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
        return self._session.welcomed.is_set()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, timeout_s: float = 30.0) -> None:
        """Connect and be welcomed."""
        self._open()
        self._spawn(self._session.run(), "bus-session")
        welcomed = self._spawn(self._session.welcomed.wait(), "bus-welcome")
        refused = self._spawn(self._session.refused.wait(), "bus-refusal")
        done, _ = await asyncio.wait({welcomed, refused}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        welcomed.cancel()
        refused.cancel()
        if welcomed not in done:
            refusal = self._session.refusal
            await self.stop()
            if refusal is not None:
                raise refusal
            raise TimedOut(
                f"no kernel answered at {self._endpoints.control} in {timeout_s:g} s",
                hint="is HomeAgent running? `homeagent up` starts it",
            )

    async def stop(self) -> None:
        """Say bye and close."""
        if self._control is None:
            return
        if self.is_welcome:
            self._send_handshake(wire.BYE, None)
        self._session.lose("this peer is stopping")
        for subscription in list(self._subscriptions):
            await subscription.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in (self._control, self._urgent, self._events, self._monitor):
            if link is not None:
                link.close(linger_ms=100)
        self._control = self._urgent = self._events = self._monitor = None
        if self._owns_context:
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
            except Unavailable as error:
                if not idempotent or not error.detail.get("bus") or loop.time() + pause_s >= deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_RETRY_S)

    def stream(
        self, method: str, body: Any = None, *, timeout_s: float | None = None, window: int = 64
    ) -> IncomingStream:
        """Call a streaming method."""
        frames = wire.encode_body(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + time_left(timeout_s, _checked(method))
        call_id = self._outgoing.next_id()
        timer: asyncio.TimerHandle | None = None

        async def open_call() -> None:
            nonlocal timer
            await self._until_welcome(method, deadline)
            self._outgoing.add(call_id, stream)
            self._send_call(call_id, method, frames, deadline, window)
            error = TimedOut(f"{method} was not done before its deadline")
            timer = loop.call_at(deadline + _STREAM_GRACE_S, stream.fail, error)

        def grant(count: int) -> None:
            self._send(wire.encode_header(wire.CREDIT, call_id=call_id, number=count))

        def closed(is_unfinished: bool) -> None:
            if timer is not None:
                timer.cancel()
                if is_unfinished:
                    self._cancel(call_id)
            self._outgoing.forget(call_id)

        stream = IncomingStream(method, min(max(window, 1), wire.MAX_WINDOW), open_call, grant, closed)
        return stream

    async def cast(self, method: str, body: Any = None) -> None:
        """Send without asking for an answer."""
        frames = wire.encode_body(body)
        left_s = time_left(None, _checked(method))
        await self._until_welcome(method, asyncio.get_running_loop().time() + left_s)
        self._send(wire.encode_header(wire.CAST, method=method, trace=_trace()), frames)

    async def publish(self, topic: str, payload: Any = None) -> None:
        """Put an event on the ring."""
        frames = wire.encode_body(payload)
        if len(frames) > 1 or len(frames[0]) > wire.BLOB_THRESHOLD_BYTES:
            raise Invalid(
                f"an event of {sum(map(len, frames))} bytes on {topic}",
                hint="events hold at most 64 KiB; send a reference",
            )
        await self.cast("hub.publish", {"topic": topic, "payload": frames[0]})

    async def subscribe(self, topics: Iterable[str], handler: EventHandler) -> EventSubscription:
        """Deliver every event of the topics, once and in order."""
        socket = self._open_events()
        subscription = EventSubscription(topics, handler, self._replay, self._unsubscribe)
        self._subscriptions.append(subscription)
        for topic in (*subscription.topics, HEARTBEAT):
            socket.subscribe(topic.removesuffix("*"))
        answer = await self.call("hub.positions", {"topics": list(subscription.topics)}, idempotent=True)
        subscription.position(answer["positions"])
        return subscription

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _call_once(self, method: str, frames: list[bytes], deadline: float) -> Any:
        await self._until_welcome(method, deadline)
        call_id = self._outgoing.next_id()
        pending = Pending(method)
        self._outgoing.add(call_id, pending)
        try:
            self._send_call(call_id, method, frames, deadline, 0)
            return await wait_for(pending, deadline - asyncio.get_running_loop().time())
        except TimeoutError as error:
            self._cancel(call_id)
            raise TimedOut(f"{method} was not answered before its deadline") from error
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            self._outgoing.forget(call_id)

    async def _until_welcome(self, method: str, deadline: float) -> None:
        if self._session.welcomed.is_set():
            return
        if self._control is None:
            raise Cancelled(f"{method} was not sent: this peer is stopped")
        if self._waiting >= _MAX_WAITING:
            raise Overloaded(f"{_MAX_WAITING} calls wait for the kernel already", hint="try again when it is back")
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._session.welcomed.wait()
        except TimeoutError as error:
            raise _unavailable(f"{method} was not sent: the kernel did not come back in time", sent=False) from error
        finally:
            self._waiting -= 1

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
        self._send(header, frames)

    def _send(self, header: bytes, frames: list[bytes] | None = None) -> None:
        if self._control is None:
            raise _unavailable("this peer is stopped", sent=False)
        self._control.send([header, *(frames or [])])

    def _send_answer(self, kind: str, call_id: int, number: int, value: Any) -> None:
        if not self._session.is_admitted:
            return  # the hub that asked is gone, and its successor does not know the call
        frames = wire.encode_body(value) if value is not None or kind in (wire.REPLY, wire.NEXT) else []
        try:
            self._send(wire.encode_header(kind, call_id=call_id, number=number), frames)
        except (Overloaded, Unavailable) as error:
            _log.warning("answer dropped", kind=kind, reason=str(error))

    def _send_handshake(self, kind: str, body: Any) -> None:
        self._send(wire.encode_header(kind), [] if body is None else wire.encode_body(body))

    def _cancel(self, call_id: int) -> None:
        if self._urgent is not None and self.is_welcome:
            try:
                self._urgent.send([wire.encode_header(wire.CANCEL, call_id=call_id)])
            except Overloaded:
                _log.warning("cancel dropped; the deadline will end the call", call=call_id)

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
            elif call_id:
                self._outgoing.take(call_id, kind, header.get("n", 0), wire.decode_body(frames[1:]))
            else:
                self._session.take(kind, wire.decode_body(frames[1:]))
        except wire.Malformed as error:
            _log.error("the hub sent a message that cannot be read", reason=str(error))

    def _on_urgent(self, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[0])
        except wire.Malformed as error:
            _log.error("the hub sent a message that cannot be read", reason=str(error))
            return
        if header["k"] == wire.PING and self._urgent is not None:
            self._urgent.send([wire.encode_header(wire.PONG, call_id=header.get("i", 0))])
        elif header["k"] == wire.CANCEL:
            self._incoming.take_cancel(header.get("i", 0))

    def _on_event(self, frames: list[bytes]) -> None:
        try:
            header = wire.decode_header(frames[1])
            payload = wire.decode_body(frames[2:])
        except (wire.Malformed, IndexError) as error:
            _log.error("the hub published an event that cannot be read", reason=str(error))
            return
        if header.get("e") != self.epoch:
            return
        topic = str(header.get("m", ""))
        event = Event(topic, str(header["e"]), header.get("n", 0), float(header.get("s", 0)), payload)
        for subscription in self._subscriptions:
            if topic == HEARTBEAT:
                for name, number in payload.items():
                    subscription.take_position(name, number)
            elif subscription.matches(topic):
                subscription.take(event)

    def _on_monitor(self, frames: list[bytes]) -> None:
        kind = parse_monitor_message(frames)["event"]
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._session.link_up()
        elif kind in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
            self._session.link_down()

    async def _welcomed(self, welcome: Welcome) -> None:
        is_new_epoch = self._welcome is not None and self._welcome.epoch != welcome.epoch
        self._welcome = welcome
        assert self._urgent is not None
        self._urgent.send([wire.encode_header(wire.HELLO), *wire.encode_body({"session": welcome.session})])
        if is_new_epoch:
            for subscription in self._subscriptions:
                subscription.restart(welcome.epoch)
        for callback in self._callbacks:
            self._spawn(self._run_callback(callback), "bus-on-welcome")

    async def _run_callback(self, callback: Callable[[], Awaitable[None]]) -> None:
        try:
            await callback()
        except HomeAgentError as error:
            _log.error("what had to be done after the welcome failed", error=str(error), code=error.code)
        except Exception:
            _log.exception("what had to be done after the welcome failed")

    def _lost(self, reason: str) -> None:
        _log.info("the kernel is lost", reason=reason)
        for link in (self._control, self._urgent):
            if link is not None:
                link.forget_queue()
        self._outgoing.fail_all(_unavailable(reason, sent=True))
        self._incoming.cancel_all()

    async def _replay(self, topic: str, after: int, up_to: int) -> dict[str, Any]:
        request = {"topic": topic, "after": after, "up_to": up_to}
        answer: dict[str, Any] = await self.call("hub.replay", request, timeout_s=10, idempotent=True)
        return answer

    def _unsubscribe(self, subscription: EventSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            if self._events_socket is not None and not self._events_socket.closed:
                for topic in subscription.topics:
                    self._events_socket.unsubscribe(topic.removesuffix("*"))

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _open(self) -> None:
        if self._control is not None:
            raise Denied("this peer was started already")
        control, urgent = self._socket(zmq.DEALER), self._socket(zmq.DEALER)
        self._control = Link(control, self._on_control)
        self._urgent = Link(urgent, self._on_urgent)
        if self._endpoints.control.startswith("inproc:"):
            self._session.link_up()
        else:
            monitor = control.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
            )
            self._monitor = Link(monitor, self._on_monitor)
            self._monitor.start()
        self._control.start()
        self._urgent.start()
        control.connect(self._endpoints.control)
        urgent.connect(self._endpoints.urgent)

    def _open_events(self) -> zmq.Socket[bytes]:
        if self._events_socket is None:
            self._events_socket = self._socket(zmq.SUB)
            self._events_socket.connect(self._endpoints.events)
            self._events = Link(self._events_socket, self._on_event)
            self._events.start()
        return self._events_socket

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
        return socket


def _checked(method: str) -> str:
    if not wire.is_method(method):
        raise Invalid(f"{method!r} is not a method name", hint="methods are <peer>.<verb> in lower case")
    return method


def _trace() -> str:
    return current_trace.get() or new_trace()


def _unavailable(message: str, *, sent: bool) -> Unavailable:
    return Unavailable(message, hint="it is restarting; try again", detail={"bus": True, "sent": sent})
