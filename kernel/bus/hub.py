"""The hub: three sockets in a thread with a loop of its own, so that a long turn does not delay routing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
import zmq

from homeagent_sdk.bus import Endpoints, KeyCredential, wire
from homeagent_sdk.bus.framing import send_frames
from homeagent_sdk.bus.link import Link
from homeagent_sdk.errors import Conflict, HomeAgentError, Overloaded, Unavailable
from kernel.bus.admission import Admission
from kernel.bus.event_ring import EventRing
from kernel.bus.hub_methods import HubMethods
from kernel.bus.peers import RemotePeer
from kernel.bus.process_watch import ProcessWatch
from kernel.bus.switchboard import FULL, GONE, SENT, Frames, Switchboard

PING_INTERVAL_S: Final = 2.0
HEARTBEAT_INTERVAL_S: Final = 1.0
"""Between two heartbeats of the ring after an event; there are two, then one in ten seconds."""
_BEATS_AFTER_EVENT, _BEATS_WHEN_QUIET = 2, 10
_FLUSH_INTERVAL_S = 0.002
_START_TIMEOUT_S = 10.0
_HIGH_WATER_MARK = 100
"""Messages that ZeroMQ holds for one peer; what is more waits in the peer's outbox, which is bounded by bytes, too."""
_EVENTS_HIGH_WATER_MARK = 1000
_MAX_SMALL_BYTES = 64 * 1024
"""A frame of the urgent socket, or a subscription."""
_MAX_PATH_BYTES = 107
_MOST_WAITING_EVENTS: Final = 4096
_GATHER_EVENTS_S: Final = 0.01
_log = structlog.get_logger("hub")

PeerChange = Callable[[dict[str, Any], str], None]
"""Called in the hub's thread with a description of the peer and up, running, suspect or gone."""


class Hub:
    """Runs the bus.

    :param run_dir: where the sockets are bound; guarded by a lock file, since a second bind succeeds silently
    :param keys: the shared secrets of the services and of the operator
    """

    def __init__(self, run_dir: Path, keys: Mapping[str, str], on_change: PeerChange | None = None) -> None:
        self.epoch = secrets.token_hex(8)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._run_dir = run_dir
        self._on_change = on_change
        kernel_key = secrets.token_hex(32)
        self._admission = Admission({**keys, "kernel": kernel_key})
        self.kernel_credential = KeyCredential("kernel", kernel_key)
        """What the kernel's own peer proves itself with; it exists in this process only."""
        self.endpoints = Endpoints(*(f"inproc://{self.epoch}-{name}" for name in ("control", "urgent", "events")))
        self._ring = EventRing(self.epoch)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._lock_descriptor: int | None = None
        self._links: dict[str, Link] = {}
        self._used: set[str] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._is_flush_due = False
        self._beats_due = 0
        self._quiet_beats = 0
        self._waiting_events: deque[tuple[str, bytes]] = deque()
        self._is_publishing_due = False
        self._dropped_events = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind the sockets and begin to route.

        :raises Conflict: another kernel runs in this data directory
        :raises Unavailable: the sockets cannot be bound
        """
        try:
            self._check_path()
            self._lock()
            self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
            self._thread.start()
            if not self._started.wait(_START_TIMEOUT_S):
                raise Unavailable("the hub did not start in time", hint="the machine may be overloaded; try again")
            if self._failure is not None:
                raise Unavailable(f"the bus cannot be bound in {self._run_dir}: {self._failure}") from self._failure
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop routing and remove the sockets, once the kernel's own peer is stopped. Blocks; call it in a thread."""
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.context.destroy(linger=0)
        if self._lock_descriptor is not None:
            for name in ("control", "urgent", "events"):
                with suppress(OSError):
                    (self._run_dir / f"{name}.sock").unlink(missing_ok=True)
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _check_path(self) -> None:
        longest = os.fsencode(self._run_dir / "control.sock")
        if len(longest) > _MAX_PATH_BYTES:
            raise Unavailable(
                f"the path of the bus has {len(longest)} bytes: {self._run_dir}",
                hint=f"a socket's path has {_MAX_PATH_BYTES} at most; choose a data directory with a shorter path",
            )

    def _lock(self) -> None:
        path = self._run_dir / "hub.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"the bus cannot be bound in {self._run_dir}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise Conflict(
                f"another kernel runs with {self._run_dir}", hint="`homeagent status` shows it; stop it first"
            ) from error
        self._lock_descriptor = descriptor

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failure = error
            if self._started.is_set():
                _log.exception("the hub failed")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        sockets = self._bind()
        self._processes = ProcessWatch(self._loop)
        self._switchboard = Switchboard(
            self.epoch,
            self._admission,
            lambda identity, frames: self._send("control", sockets["control"], identity, frames),
            lambda identity, frames: self._send("urgent", sockets["urgent"], identity, frames),
            self._peer_changed,
            lambda peer, method, body: self._methods.answer(peer, method, body),
            self._loop.time,
        )
        self._methods = HubMethods(self._switchboard, self._ring, self.publish, lambda: self._dropped_events)
        self._events = sockets["events"]
        self._links["control"] = Link(sockets["control"], self._on_control, copy=False)
        self._links["urgent"] = Link(sockets["urgent"], self._on_urgent)
        self._links["events"] = Link(sockets["events"], lambda frames: None)
        for link in self._links.values():
            link.start()
        ticker = asyncio.create_task(self._tick(), name="hub-ticker")
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            ticker.cancel()
            for peer in self._switchboard.peers:
                self._switchboard.drop(peer, "the kernel is stopping")
            for link in self._links.values():
                link.close(linger_ms=200)

    def _bind(self) -> dict[str, zmq.Socket[bytes]]:
        sockets = {}
        outside = Endpoints.in_directory(self._run_dir)
        for name, kind in (("control", zmq.ROUTER), ("urgent", zmq.ROUTER), ("events", zmq.XPUB)):
            socket: zmq.Socket[bytes] = self.context.socket(kind)
            mark = _EVENTS_HIGH_WATER_MARK if kind == zmq.XPUB else _HIGH_WATER_MARK
            socket.setsockopt(zmq.SNDHWM, mark)
            socket.setsockopt(zmq.RCVHWM, mark)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES if name == "control" else _MAX_SMALL_BYTES)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
            if kind == zmq.ROUTER:
                socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            path = self._run_dir / f"{name}.sock"
            path.unlink(missing_ok=True)
            socket.bind(getattr(outside, name))
            path.chmod(0o660)
            socket.bind(getattr(self.endpoints, name))
            sockets[name] = socket
        return sockets

    # -- messages -----------------------------------------------------------------------------------------------------

    def _on_control(self, frames: list[zmq.Frame]) -> None:
        """Hand a message to the switchboard; frames that are worth it are passed on without a copy."""
        identity, *rest = frames
        payload = [frame if len(frame) > wire.BLOB_THRESHOLD_BYTES else frame.bytes for frame in rest]
        if len(payload) > 0 and not isinstance(payload[0], bytes):
            payload[0] = payload[0].bytes[: wire.MAX_HEADER_BYTES + 1]
        self._guard(self._switchboard.take_control, identity.bytes, payload, lambda: _pid_of(identity))

    def _on_urgent(self, frames: list[bytes]) -> None:
        self._guard(self._switchboard.take_urgent, frames[0], frames[1:])

    def _guard(self, take: Callable[..., object], *arguments: Any) -> None:
        try:
            take(*arguments)
        except Exception:
            _log.exception("the hub could not handle a message; it goes on")
            self._switchboard.counters["faults"] += 1
        self._schedule()

    def _send(self, name: str, socket: zmq.Socket[bytes], identity: bytes, frames: Frames) -> str:
        self._used.add(name)
        try:
            send_frames(socket, [identity, *frames])
        except zmq.Again:
            self._flush_soon()
            return FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                _log.error("send failed", reason=str(error))
            return GONE
        return SENT

    def _schedule(self) -> None:
        """After anything was done: look at the sockets that were used, and set the alarm for the next deadline."""
        assert self._loop is not None
        for name in self._used:
            self._links[name].look_again()
        self._used.clear()
        deadline = self._switchboard.next_deadline()
        if self._expiry is not None and (deadline is None or self._expiry.when() > deadline):
            self._expiry.cancel()
            self._expiry = None
        if self._expiry is None and deadline is not None:
            self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._guard(self._switchboard.expire)

    def _flush_soon(self) -> None:
        if not self._is_flush_due and self._loop is not None:
            self._is_flush_due = True
            self._loop.call_later(_FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._guard(self._switchboard.flush)

    async def _tick(self) -> None:
        assert self._loop is not None
        next_ping = self._loop.time() + PING_INTERVAL_S
        while True:
            due = self._loop.time() + HEARTBEAT_INTERVAL_S
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            self._guard(self._heartbeat)
            now = self._loop.time()
            is_late = now - due > PING_INTERVAL_S
            if now >= next_ping or is_late:
                next_ping = now + PING_INTERVAL_S - HEARTBEAT_INTERVAL_S / 2
                self._guard(lambda late=is_late: self._switchboard.ping(count_misses=not late))

    # -- peers and events ---------------------------------------------------------------------------------------------

    def _peer_changed(self, peer: RemotePeer, what: str) -> None:
        if what == "gone":
            self._processes.forget(peer.number)
        elif what == "up" and peer.is_pid_certain and peer.pid != os.getpid():
            ended = lambda: self._guard(self._switchboard.remove, peer, "its process ended")  # noqa: E731
            self._processes.watch(peer.number, peer.pid, ended)
        if what in ("up", "gone") and peer.tier != "operator":
            try:
                self.publish(f"peer.{what}", wire.encode_body({"name": peer.name, "generation": peer.generation})[0])
            except Overloaded as error:
                _log.warning("an event of the hub is lost", reason=str(error))
        if self._on_change is not None:
            self._on_change(peer.describe(), what)

    def publish(self, topic: str, body: bytes) -> None:
        """Put an event on the ring; only in the hub's thread."""
        frames = self._ring.append(topic, body)
        self._beats_due = _BEATS_AFTER_EVENT
        self._emit(frames)

    def publish_soon(self, topic: str, body: bytes) -> None:
        """Put an event on the ring within some milliseconds; from any thread of this process.

        The kernel's own events go this way: as casts, five of them cost a turn more than the memory's answer did. When
        :data:`_MOST_WAITING_EVENTS` wait, further ones are dropped, counted and logged.
        """
        if self._loop is None or len(self._waiting_events) >= _MOST_WAITING_EVENTS:
            self._dropped_events += 1
            if self._dropped_events in (1, 10, 100) or self._dropped_events % 1000 == 0:
                _log.warning("event dropped: the hub does not keep up", topic=topic, total=self._dropped_events)
            return
        self._waiting_events.append((topic, body))
        if not self._is_publishing_due:
            self._is_publishing_due = True
            with suppress(RuntimeError):  # the loop is closed: the hub has stopped, and with it the ring
                self._loop.call_soon_threadsafe(self._loop.call_later, _GATHER_EVENTS_S, self._publish_waiting)

    def _publish_waiting(self) -> None:
        self._is_publishing_due = False
        while self._waiting_events:
            topic, body = self._waiting_events.popleft()
            try:
                self.publish(topic, body)
            except HomeAgentError as error:
                _log.warning("an event of the kernel is lost", topic=topic, reason=str(error))
        self._schedule()

    def _heartbeat(self) -> None:
        """Tell how far the topics are: twice after an event, and now and then, for those who slept meanwhile."""
        self._quiet_beats += 1
        if self._beats_due or self._quiet_beats >= _BEATS_WHEN_QUIET:
            self._beats_due = max(0, self._beats_due - 1)
            self._quiet_beats = 0
            self._emit(self._ring.heartbeat())

    def _emit(self, frames: list[bytes]) -> None:
        self._used.add("events")
        send_frames(self._events, frames)


def _pid_of(frame: zmq.Frame) -> int:
    """Return the sender's process id as the operating system gives it; 0 over inproc and from other namespaces."""
    try:
        address = frame.get("Peer-Address")
    except (zmq.ZMQError, KeyError):
        return 0
    parts = str(address).split(":")
    return int(parts[3]) if len(parts) == 4 and parts[3].isdigit() else 0
