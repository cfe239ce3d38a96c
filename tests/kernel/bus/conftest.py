"""A real hub on real sockets, and peers of every tier."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq

from homeagent_sdk.bus import Credential, Endpoints, KeyCredential, Peer, Secret
from homeagent_sdk.bus.abc import Handler
from kernel.bus import Hub

KEYS = {name: name.ljust(40, "x") for name in ("memory", "provider", "host", "operator")}
MakePeer = Callable[..., Awaitable[Peer]]
MakeHub = Callable[[], Hub]
RawSocket = Callable[..., "zmq.Socket[bytes]"]


class OneToken(Credential):
    """A plugin's credential with a token that the test has minted."""

    def __init__(self, name: str, token: str, generation: int) -> None:
        self._secret = Secret(name, token, generation)

    async def secret(self) -> Secret:
        return self._secret


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for what another thread or process does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.002)


async def die(peer: Peer) -> None:
    """Stop a peer as a kill would: without a bye."""
    peer._uplink.send_handshake = lambda kind, body: None  # type: ignore[method-assign]
    await peer.stop()


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path, KEYS)
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
async def make_peer(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MakePeer]:
    """Make peers of the hub in ``tmp_path``; the kernel and plugins need the fixture ``hub``."""
    peers: list[Peer] = []
    hub: Hub | None = request.getfixturevalue("hub") if "hub" in request.fixturenames else None

    async def make(name: str, tier: str = "", generation: int = 1, serve: Mapping[str, Handler] | None = None) -> Peer:
        if name == "kernel":
            assert hub is not None
            peer = Peer(tmp_path, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
        elif tier:
            assert hub is not None
            token = hub._admission.mint(name, generation, tier)
            peer = Peer(tmp_path, OneToken(name, token, generation))
        else:
            peer = Peer(tmp_path, KeyCredential(name, KEYS[name.partition("-")[0]]))
        peers.append(peer)
        for method, handler in (serve or {}).items():
            peer.serve(method, handler)
        await peer.start(5)
        return peer

    yield make
    for peer in reversed(peers):
        await peer.stop()


@pytest.fixture
def raw_socket(tmp_path: Path) -> Iterator[RawSocket]:
    """Make sockets that speak to the hub without knowing the protocol."""
    context: zmq.Context[Any] = zmq.Context()
    sockets = []

    def make(name: str = "control", kind: int = zmq.DEALER, mark: int = 1000) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, mark)
        socket.setsockopt(zmq.RCVTIMEO, 3000)
        socket.setsockopt(zmq.SNDTIMEO, 3000)
        socket.connect(getattr(Endpoints.in_directory(tmp_path), name))
        sockets.append(socket)
        return socket

    yield make
    context.destroy(linger=0)
