"""The bus client: one :class:`Peer` per process."""

from homeagent_sdk.bus.abc import BusPeer, CallContext, Event, Origin, Stream, Subscription
from homeagent_sdk.bus.credential import Credential, KeyCredential, Secret, TokenChannel, prove
from homeagent_sdk.bus.peer import Peer
from homeagent_sdk.bus.sockets import Endpoints

__all__ = [
    "BusPeer",
    "CallContext",
    "Credential",
    "Endpoints",
    "Event",
    "KeyCredential",
    "Origin",
    "Peer",
    "Secret",
    "Stream",
    "Subscription",
    "TokenChannel",
    "prove",
]
