"""A real hub on real sockets, and peers of every tier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from homeagent_sdk.bus import Credential, KeyCredential, Peer, Secret
from homeagent_sdk.bus.abc import Handler
from kernel.bus import Hub

KEYS = {name: name.ljust(40, "x") for name in ("memory", "provider", "host", "operator")}
MakePeer = Callable[..., Awaitable[Peer]]


class OneToken(Credential):
    """A plugin's credential with a token that the test has minted."""

    def __init__(self, name: str, token: str, generation: int) -> None:
        self._secret = Secret(name, token, generation)

    async def secret(self) -> Secret:
        return self._secret


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    hub = Hub(tmp_path, KEYS)
    hub.start()
    yield hub
    hub.stop()


@pytest.fixture
async def make_peer(hub: Hub, tmp_path: Path) -> AsyncIterator[MakePeer]:
    peers: list[Peer] = []

    async def make(name: str, tier: str = "", generation: int = 1, serve: Mapping[str, Handler] | None = None) -> Peer:
        if name == "kernel":
            peer = Peer(tmp_path, hub.kernel_credential, context=hub.context, endpoints=hub.endpoints)
        elif tier:
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
    for peer in peers:
        await peer.stop()
