"""A peer written from docs/protocol.md alone: pyzmq, msgpack and the standard library, nothing of HomeAgent's.

``python stranger.py RUN_DIR KEY`` joins as the service ``provider`` and prints a line of JSON for everything it learns.
It serves ``provider.sources`` (echo), ``provider.chat`` (a stream) and ``provider.usage``, for which it calls the
kernel, and it follows the events of ``turn.*``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgpack
import zmq

NAME = "provider"


def pack(kind: str, **fields: Any) -> bytes:
    return msgpack.packb({"v": 1, "k": kind, **fields})


def decode(frames: list[bytes]) -> Any:
    if not frames:
        return None
    return msgpack.unpackb(frames[0], ext_hook=lambda code, data: frames[1:][int.from_bytes(data, "big")])


def encode(value: Any) -> list[bytes]:
    if isinstance(value, bytes) and len(value) > 65536:
        return [msgpack.packb(msgpack.ExtType(1, (0).to_bytes(4, "big"))), value]
    return [msgpack.packb(value)]


def tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Stranger:
    def __init__(self, run_dir: str, key: str) -> None:
        self.key = key
        context: zmq.Context[Any] = zmq.Context()
        self.control, self.urgent, self.events = (
            self.connect(context, kind, f"ipc://{run_dir}/{name}.sock")
            for name, kind in (("control", zmq.DEALER), ("urgent", zmq.DEALER), ("events", zmq.SUB))
        )
        self.epoch = ""
        self.last_id = 0
        self.waiting: dict[int, Callable[[str, Any], None]] = {}
        self.streams: dict[int, list[int]] = {}
        self.positions: dict[str, int] = {}

    @staticmethod
    def connect(context: zmq.Context[Any], kind: int, address: str) -> Any:
        socket = context.socket(kind)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.MAXMSGSIZE, 67108864)
        socket.connect(address)
        return socket

    # -- §3 joining ---------------------------------------------------------------------------------------------------

    def join(self) -> None:
        hello = {"name": NAME, "generation": 0, "protocols": [1]}
        self.control.send_multipart([pack("hello"), *encode(hello)])
        nonce = self.expect(self.control, "challenge")["nonce"]
        text = b"homeagent-bus-1|" + NAME.encode() + b"|" + nonce
        proof = hmac.new(self.key.encode(), text, hashlib.sha256).digest()
        self.control.send_multipart([pack("hello"), *encode({**hello, "nonce": nonce, "proof": proof})])
        welcome = self.expect(self.control, "welcome")
        self.epoch = welcome["epoch"]
        self.urgent.send_multipart([pack("hello"), *encode({"session": welcome["session"]})])
        self.expect(self.urgent, "welcome")
        tell(joined=welcome["name"], tier=welcome["tier"])

    def expect(self, socket: Any, kind: str) -> Any:
        assert socket.poll(5000), f"no {kind}"
        frames = socket.recv_multipart()
        assert msgpack.unpackb(frames[0])["k"] == kind, frames
        return decode(frames[1:])

    # -- §4 calls -----------------------------------------------------------------------------------------------------

    def call(self, method: str, body: Any, then: Callable[[str, Any], None]) -> None:
        self.last_id += 1
        self.waiting[self.last_id] = then
        self.control.send_multipart([pack("call", i=self.last_id, m=method, d=5000), *encode(body)])

    def on_control(self, frames: list[bytes]) -> bool:
        header, body = msgpack.unpackb(frames[0]), decode(frames[1:])
        kind, call_id = header["k"], header.get("i", 0)
        if kind == "bye":
            tell(bye=body["reason"])
            return False
        if kind == "call":
            self.serve(call_id, header, body)
        elif kind == "credit" and call_id in self.streams:
            self.streams[call_id][0] += header["n"]
            self.write(call_id)
        elif kind in ("reply", "error"):
            self.waiting.pop(call_id)(kind, body)
        return True

    def serve(self, call_id: int, header: dict[str, Any], body: Any) -> None:
        method = header["m"]
        if method == "provider.sources":
            self.control.send_multipart([pack("reply", i=call_id), *encode(body)])
        elif method == "provider.chat" and header.get("n", 0):
            self.streams[call_id] = [header["n"], 0, body]  # what is granted, what is sent, what is wanted
            self.write(call_id)
        elif method == "provider.usage":
            tell(left_ms=header["d"], origin=header["o"])

            def pass_on(kind: str, answer: Any) -> None:
                self.control.send_multipart([pack(kind, i=call_id), *encode(answer)])

            self.call("kernel.status", {"asked_by": header["o"]["name"]}, pass_on)
        else:
            error = {"code": "not_found", "message": f"nobody serves {method}"}
            self.control.send_multipart([pack("error", i=call_id), *encode(error)])

    def write(self, call_id: int) -> None:
        granted, sent, wanted = self.streams[call_id]
        while sent < min(granted, wanted):
            self.control.send_multipart([pack("next", i=call_id, n=sent), *encode(sent)])
            sent += 1
        self.streams[call_id][1] = sent
        if sent == wanted:
            self.control.send_multipart([pack("end", i=call_id, n=sent)])
            del self.streams[call_id]

    def on_urgent(self, frames: list[bytes]) -> None:
        header = msgpack.unpackb(frames[0])
        if header["k"] == "ping":
            self.urgent.send_multipart([pack("pong", i=header["i"])])
            tell(pinged=True)
        elif header["k"] == "cancel" and self.streams.pop(header["i"], None):
            error = {"code": "cancelled", "message": "as you wish"}
            self.control.send_multipart([pack("error", i=header["i"]), *encode(error)])
            tell(cancelled=True)

    # -- §6 events ----------------------------------------------------------------------------------------------------

    def subscribe(self) -> None:
        for topic in (b"turn.", b"ring.heartbeat"):
            self.events.setsockopt(zmq.SUBSCRIBE, topic)

        def begin(kind: str, answer: Any) -> None:
            self.positions = answer["positions"]
            tell(subscribed=True)

        self.call("hub.positions", {"topics": ["turn.*"]}, begin)

    def on_event(self, frames: list[bytes]) -> None:
        header, payload = msgpack.unpackb(frames[1]), decode(frames[2:])
        if header["e"] != self.epoch:
            return
        if header["m"] == "ring.heartbeat":
            for topic, newest in payload.items():
                if topic.startswith("turn."):
                    self.fetch(topic, newest)
        else:
            topic, number = header["m"], header["n"]
            if number == self.positions.get(topic, 0) + 1:
                self.deliver(topic, number, payload)
            else:
                self.fetch(topic, number)

    def fetch(self, topic: str, up_to: int) -> None:
        """Get what is missing; a number that was delivered meanwhile is not delivered again."""
        after = self.positions.get(topic, 0)
        if after >= up_to:
            return

        def take(kind: str, answer: Any) -> None:
            assert kind == "reply", answer
            for number, _, body in answer["events"]:
                if number == self.positions.get(topic, 0) + 1:
                    self.deliver(topic, number, msgpack.unpackb(body))
            self.fetch(topic, up_to)

        self.call("hub.replay", {"topic": topic, "after": after, "up_to": up_to}, take)

    def deliver(self, topic: str, number: int, payload: Any) -> None:
        self.positions[topic] = number
        tell(event=topic, number=number, payload=payload)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self.join()
        self.subscribe()
        poller = zmq.Poller()
        for socket in (self.control, self.urgent, self.events):
            poller.register(socket, zmq.POLLIN)
        poller.register(sys.stdin, zmq.POLLIN)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ready = dict(poller.poll(1000))
            if self.urgent in ready:
                self.on_urgent(self.urgent.recv_multipart())
            if self.control in ready and not self.on_control(self.control.recv_multipart()):
                return
            if self.events in ready:
                self.on_event(self.events.recv_multipart())
            if sys.stdin.fileno() in ready:
                break
        self.control.send_multipart([pack("bye")])


if __name__ == "__main__":
    Stranger(sys.argv[1], sys.argv[2]).run()
