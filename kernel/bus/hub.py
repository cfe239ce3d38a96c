"""The hub: three sockets in a thread with a loop of its own, so that a long turn does not delay routing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
import zmq

from homeagent_sdk.bus import Endpoints, KeyCredential, wire
from homeagent_sdk.bus.link import Link
from homeagent_sdk.errors import Conflict, Invalid, Unavailable
from kernel.bus.admission import Admission
from kernel.bus.event_ring import EventRing
from kernel.bus.lag import measure_lag
from kernel.bus.peers import RemotePeer
from kernel.bus.switchboard import FULL, GONE, SENT, Frames, Switchboard

PING_INTERVAL_S: Final = 2.0
_FLUSH_INTERVAL_S = 0.002
_START_TIMEOUT_S = 10.0
_HIGH_WATER_MARK = 1000
_EVENTS_HIGH_WATER_MARK = 10_000
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
        self._expiry: asyncio.TimerHandle | None = None
        self._flushing = False
        self._heartbeat_due = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind the sockets and begin to route.

        :raises Conflict: another kernel runs in this data directory
        :raises Unavailable: the sockets cannot be bound
        """
        self._lock()
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT_S):
            raise Unavailable("the hub did not start in time")
        if self._failure is not None:
            raise Unavailable(f"the bus cannot be bound in {self._run_dir}: {self._failure}") from self._failure

    def stop(self) -> None:
        """Stop routing and remove the sockets, once the kernel's own peer is stopped. Blocks; call it in a thread."""
        if self._loop is not None and self._stopping is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.context.destroy(linger=0)
        for name in ("control", "urgent", "events"):
            (self._run_dir / f"{name}.sock").unlink(missing_ok=True)
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None

    def _lock(self) -> None:
        path = self._run_dir / "hub.lock"
        self._lock_descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
            raise Conflict(
                f"another kernel runs with {self._run_dir}", hint="`homeagent status` shows it; stop it first"
            ) from error

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            self._failure = error
            _log.exception("the hub failed")
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        control, urgent, events = self._bind()
        self._switchboard = Switchboard(
            self.epoch,
            self._admission,
            lambda identity, frames: self._send(control, identity, frames),
            lambda identity, frames: self._send(urgent, identity, frames),
            self._peer_changed,
            self._answer,
            self._loop.time,
        )
        self._events = events
        links = [
            Link(control, self._on_control, copy=False),
            Link(urgent, self._on_urgent, copy=False),
            Link(events, lambda frames: None),
        ]
        for link in links:
            link.start()
        self._links = links
        ticker = asyncio.create_task(self._tick(), name="hub-ticker")
        self._started.set()
        try:
            await self._stopping.wait()
        finally:
            ticker.cancel()
            for peer in self._switchboard.peers:
                self._switchboard.drop(peer, "the kernel is stopping")
            for link in links:
                link.close(linger_ms=200)

    def _bind(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], zmq.Socket[bytes]]:
        sockets = []
        outside = Endpoints.in_directory(self._run_dir)
        for name, kind in (("control", zmq.ROUTER), ("urgent", zmq.ROUTER), ("events", zmq.XPUB)):
            socket: zmq.Socket[bytes] = self.context.socket(kind)
            mark = _EVENTS_HIGH_WATER_MARK if kind == zmq.XPUB else _HIGH_WATER_MARK
            socket.setsockopt(zmq.SNDHWM, mark)
            socket.setsockopt(zmq.RCVHWM, mark)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30000)
            if kind == zmq.ROUTER:
                socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            path = self._run_dir / f"{name}.sock"
            path.unlink(missing_ok=True)
            socket.bind(getattr(outside, name))
            path.chmod(0o660)
            socket.bind(getattr(self.endpoints, name))
            sockets.append(socket)
        return sockets[0], sockets[1], sockets[2]

    # -- messages -----------------------------------------------------------------------------------------------------

    def _on_control(self, frames: list[zmq.Frame]) -> None:
        pid = _pid_of(frames[0]) if len(frames) > 1 else 0
        payload = [frame.buffer if index > 1 else bytes(frame.buffer) for index, frame in enumerate(frames)]
        self._guard(self._switchboard.take_control, payload[0], payload[1:], pid)

    def _on_urgent(self, frames: list[zmq.Frame]) -> None:
        payload = [bytes(frame.buffer) for frame in frames]
        self._guard(self._switchboard.take_urgent, payload[0], payload[1:])

    def _guard(self, take: Callable[..., object], *arguments: Any) -> None:
        try:
            take(*arguments)
        except Exception:
            _log.exception("the hub could not handle a message; it goes on")
            self._switchboard.counters["faults"] += 1
        self._schedule()

    def _send(self, socket: zmq.Socket[bytes], identity: bytes, frames: Frames) -> str:
        try:
            socket.send_multipart([identity, *frames], zmq.DONTWAIT)
        except zmq.Again:
            self._flush_soon()
            return FULL
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                _log.error("send failed", reason=str(error))
            return GONE
        return SENT

    def _schedule(self) -> None:
        assert self._loop is not None
        for link in self._links:
            link.look_again()
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
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_later(_FLUSH_INTERVAL_S, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._guard(self._switchboard.flush)

    async def _tick(self) -> None:
        assert self._loop is not None
        while True:
            due = self._loop.time() + PING_INTERVAL_S / 2
            await asyncio.sleep(PING_INTERVAL_S / 2)
            self._heartbeat()
            due += PING_INTERVAL_S / 2
            await asyncio.sleep(PING_INTERVAL_S / 2)
            self._heartbeat()
            is_late = self._loop.time() - due > PING_INTERVAL_S
            self._guard(lambda late=is_late: self._switchboard.ping(count_misses=not late))

    # -- peers --------------------------------------------------------------------------------------------------------

    def _peer_changed(self, peer: RemotePeer, what: str) -> None:
        if what == "up":
            self._watch(peer)
        if what in ("up", "gone") and peer.tier != "operator":
            self.publish(f"peer.{what}", wire.encode_body({"name": peer.name, "generation": peer.generation})[0])
        if self._on_change is not None:
            self._on_change(peer.describe(), what)

    def _watch(self, peer: RemotePeer) -> None:
        """Learn at once when the peer's process ends; where the process cannot be seen, pings tell it later."""
        if peer.pid <= 0 or peer.pid == os.getpid() or self._loop is None:
            return
        try:
            peer.pid_descriptor = os.pidfd_open(peer.pid)
        except OSError:
            return

        def ended() -> None:
            assert self._loop is not None
            if peer.pid_descriptor is not None:
                self._loop.remove_reader(peer.pid_descriptor)
            if peer in self._switchboard.peers:
                self._guard(self._switchboard.remove, peer, "its process ended")

        self._loop.add_reader(peer.pid_descriptor, ended)

    # -- events and hub.* ---------------------------------------------------------------------------------------------

    def publish(self, topic: str, body: bytes) -> None:
        """Put an event on the ring; only in the hub's thread."""
        frames = self._ring.append(topic, body)
        self._heartbeat_due = 2
        self._events.send_multipart(frames, zmq.DONTWAIT)

    def _heartbeat(self) -> None:
        if self._heartbeat_due:
            self._heartbeat_due -= 1
            self._events.send_multipart(self._ring.heartbeat(), zmq.DONTWAIT)

    def _answer(self, peer: RemotePeer, method: str, body: Any) -> Any:
        handler = getattr(self, f"_hub_{method.removeprefix('hub.')}", None)
        if handler is None:
            raise Invalid(f"the hub has no method {method}")
        return handler(body)

    def _hub_publish(self, body: Any) -> None:
        self.publish(str(body["topic"]), bytes(body["payload"]))

    def _hub_replay(self, body: Any) -> dict[str, Any]:
        return self._ring.replay(str(body["topic"]), int(body["after"]), int(body["up_to"]))

    def _hub_positions(self, body: Any) -> dict[str, Any]:
        topics = [str(topic) for topic in body["topics"]]
        matching = {
            topic: number
            for topic, number in self._ring.positions.items()
            if any(topic == t or (t.endswith("*") and topic.startswith(t[:-1])) for t in topics)
        }
        return {"epoch": self.epoch, "positions": matching}

    def _hub_peers(self, body: Any) -> dict[str, Any]:
        return {"peers": [peer.describe() for peer in self._switchboard.peers]}

    def _hub_stats(self, body: Any) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "counters": dict(self._switchboard.counters),
            "calls_under_way": len(self._switchboard.routes),
            "ring": self._ring.counts(),
        }

    def _hub_mint_token(self, body: Any) -> dict[str, Any]:
        token = self._admission.mint(
            str(body["name"]), int(body["generation"]), str(body["tier"]), int(body.get("pid", 0))
        )
        return {"token": token}

    def _hub_lag(self, body: Any) -> Callable[[Callable[[Any], None]], None]:
        seconds = min(max(float(body.get("seconds", 1.0)), 0.1), 60.0)

        def later(reply: Callable[[Any], None]) -> None:
            assert self._loop is not None
            task = self._loop.create_task(measure_lag(seconds))
            task.add_done_callback(lambda done: None if done.cancelled() else self._guard(reply, done.result()))

        return later


def _pid_of(frame: zmq.Frame) -> int:
    """Return the sender's process id as the operating system gives it; 0 over inproc and from other namespaces."""
    try:
        address = frame.get("Peer-Address")
    except (zmq.ZMQError, KeyError):
        return 0
    parts = str(address).split(":")
    return int(parts[3]) if len(parts) == 4 and parts[3].isdigit() else 0


def tune_interpreter() -> None:
    """Make the interpreter hand over between the kernel's thread and the hub's ten times as often as by default.

    With the default of 5 ms a busy turn alone would use up the hub's whole budget of lag.
    """
    sys.setswitchinterval(0.0005)
