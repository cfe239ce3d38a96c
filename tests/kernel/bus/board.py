"""A switchboard without sockets: connections are names, time is a number, and everything that is sent is kept."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgpack

from homeagent_sdk.bus import prove, wire
from kernel.bus.admission import Admission
from kernel.bus.peers import RemotePeer
from kernel.bus.switchboard import FULL, GONE, SENT, Frames, Switchboard

KEYS = {name: name.ljust(40, "x") for name in ("kernel", "memory", "provider", "host", "operator")}


class Sent:
    """A message that the switchboard sent: its header, and its body decoded."""

    def __init__(self, frames: Frames) -> None:
        self.header = wire.decode_header(frames[0])
        self.kind: str = self.header["k"]
        self.call_id: int = self.header.get("i", 0)
        self.frames = list(frames)

    @property
    def body(self) -> Any:
        return wire.decode_body([bytes(frame) for frame in self.frames[1:]])

    def __repr__(self) -> str:
        return f"{self.kind} {self.call_id} {self.header.get('m', '')}"


class Board:
    """A switchboard and the world around it.

    ``full`` and ``gone`` name the connections whose sockets take nothing, or are not there.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.full: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.control: defaultdict[bytes, list[Sent]] = defaultdict(list)
        self.urgent: defaultdict[bytes, list[Sent]] = defaultdict(list)
        self.changes: list[tuple[str, str]] = []
        self.hub_calls: list[tuple[str, Any]] = []
        self.hub_answer: Any = "from the hub"
        self.admission = Admission(KEYS, lambda: self.now)
        self.switchboard = Switchboard(
            "epoch-1",
            self.admission,
            lambda identity, frames: self._take(self.control, identity, frames),
            lambda identity, frames: self._take(self.urgent, identity, frames),
            lambda peer, what: self.changes.append((peer.name, what)),
            self._answer_hub,
            lambda: self.now,
        )

    def _take(self, socket: dict[bytes, list[Sent]], identity: bytes, frames: Frames) -> str:
        if identity in self.gone:
            return GONE
        if identity in self.full:
            return FULL
        socket[identity].append(Sent(frames))
        return SENT

    def _answer_hub(self, peer: RemotePeer, method: str, body: Any) -> Any:
        self.hub_calls.append((method, body))
        if isinstance(self.hub_answer, Exception):
            raise self.hub_answer
        return self.hub_answer

    # -- what peers do ------------------------------------------------------------------------------------------------

    def hello(self, identity: bytes, **body: Any) -> Sent:
        """Send a hello and return the answer."""
        hello = {"generation": 0, "protocols": [1], **body}
        self.send(identity, wire.HELLO, body=hello)
        return self.control[identity][-1]

    def join(
        self, name: str, tier: str = "", generation: int = 0, identity: bytes = b"", urgent: bool = True
    ) -> RemotePeer:
        """Let a peer say hello and be welcomed; ``tier`` makes it a plugin. Its connections have its name."""
        identity = identity or name.encode()
        secret = self.admission.mint(name, generation, tier) if tier else KEYS[name.partition("-")[0]]
        nonce = self.hello(identity, name=name, generation=generation).body["nonce"]
        proof = prove(secret, name, nonce)
        self.send(
            identity,
            wire.HELLO,
            body={"name": name, "generation": generation, "protocols": [1], "nonce": nonce, "proof": proof},
        )
        peer = self.switchboard.peers.at_control(identity)
        assert peer is not None, self.control[identity][-1].body
        if urgent:
            self.switchboard.take_urgent(
                b"u-" + identity, [wire.encode_header(wire.HELLO), msgpack.packb({"session": peer.session})]
            )
        self.control[identity].clear()
        self.urgent[b"u-" + identity].clear()
        return peer

    def send(self, identity: bytes, kind: str, body: Any = None, **header: Any) -> None:
        """Send over the control socket."""
        self.switchboard.take_control(identity, [wire.encode_header(kind, **header), *wire.encode_body(body)])

    def send_urgent(self, identity: bytes, kind: str, **header: Any) -> None:
        """Send over the urgent socket."""
        self.switchboard.take_urgent(b"u-" + identity, [wire.encode_header(kind, **header)])

    def call(self, name: bytes, call_id: int, method: str, body: Any = None, **header: Any) -> None:
        """Make a call."""
        self.send(name, wire.CALL, body, call_id=call_id, method=method, **header)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and let end what is due."""
        self.now += seconds
        self.switchboard.expire()

    def last(self, name: bytes) -> Sent:
        """Return what a connection was sent last over the control socket."""
        return self.control[name][-1]
