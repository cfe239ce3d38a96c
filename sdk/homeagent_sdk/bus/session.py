"""The handshake of a peer, and again after every loss of the hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from homeagent_sdk import __version__
from homeagent_sdk.bus import wire
from homeagent_sdk.bus.credential import Credential
from homeagent_sdk.errors import Denied, HomeAgentError, TimedOut, from_wire

_STEP_TIMEOUT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_log = structlog.get_logger("bus")


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the hub told this peer: its epoch, and the peer's name and tier as the hub sees them."""

    epoch: str
    name: str
    tier: str
    session: str


class Session:
    """Says hello until welcomed, notices the loss of the hub, says hello again.

    :param send: sends ``(kind, body)`` over the control socket
    :param on_welcome: awaited after every welcome
    :param on_loss: called when the hub is gone or has dropped this peer
    """

    def __init__(
        self,
        credential: Credential,
        send: Callable[[str, Any], None],
        on_welcome: Callable[[Welcome], Awaitable[None]],
        on_loss: Callable[[str], None],
    ) -> None:
        self._credential = credential
        self._send = send
        self._on_welcome = on_welcome
        self._on_loss = on_loss
        self._answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(maxsize=16)
        self._link_is_up = asyncio.Event()
        self._lost = asyncio.Event()
        self.welcomed = asyncio.Event()
        self.is_admitted = False
        """Whether the hub takes answers from this peer; calls may follow a welcome before it has been digested."""
        self.refusal: Denied | None = None
        """The last refusal, until a welcome comes."""
        self.refused = asyncio.Event()

    def link_up(self) -> None:
        """The socket is connected."""
        self._link_is_up.set()

    def link_down(self) -> None:
        """The socket lost its other end."""
        self._link_is_up.clear()
        self.lose("the kernel is gone")

    def lose(self, reason: str) -> None:
        """The hub is gone, or does not know this peer any more."""
        self.is_admitted = False
        if self.welcomed.is_set():
            self.welcomed.clear()
            self._on_loss(reason)
        self._lost.set()

    def take(self, kind: str, body: Any) -> None:
        """Accept a message of the handshake."""
        if kind == wire.BYE:
            self.lose(str((body or {}).get("reason", "the kernel dropped this peer")))
        elif not self._answers.full():
            self.is_admitted = self.is_admitted or kind == wire.WELCOME
            self._answers.put_nowait((kind, body))

    async def run(self) -> None:
        """Keep the peer welcome until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._link_is_up.wait()
            self._lost.clear()
            try:
                welcome = await self._shake_hands()
            except HomeAgentError as error:
                if isinstance(error, Denied):
                    self.refusal = error
                    self.refused.set()
                _log.info("not welcomed yet", reason=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            self.refusal = None
            self.refused.clear()
            self.welcomed.set()
            await self._on_welcome(welcome)
            await self._lost.wait()

    async def _shake_hands(self) -> Welcome:
        secret = await self._credential.secret()
        while not self._answers.empty():
            self._answers.get_nowait()
        hello = {
            "name": secret.name,
            "generation": secret.generation,
            "protocols": sorted(wire.ACCEPTED),
            "sdk": __version__,
            "pid": os.getpid(),
        }
        self._send(wire.HELLO, hello)
        challenge = await self._expect(wire.CHALLENGE)
        self._send(wire.HELLO, {**hello, "proof": secret.proof(bytes(challenge["nonce"]))})
        answer = await self._expect(wire.WELCOME)
        return Welcome(str(answer["epoch"]), str(answer["name"]), str(answer["tier"]), str(answer["session"]))

    async def _expect(self, expected: str) -> dict[str, Any]:
        try:
            kind, body = await asyncio.wait_for(self._answers.get(), _STEP_TIMEOUT_S)
        except TimeoutError as error:
            raise TimedOut("the kernel did not answer the hello") from error
        if kind == wire.ERROR:
            raise from_wire(body)
        if kind != expected or not isinstance(body, dict):
            raise TimedOut(f"the kernel answered {kind} where {expected} was due")
        return body
