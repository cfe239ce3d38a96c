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
from homeagent_sdk.errors import Conflict, Denied, HomeAgentError, Invalid, TimedOut, Unavailable, from_wire

_STEP_TIMEOUT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_STABLE_AFTER_S = 5.0
"""A welcome that lasted this long was a good one; after shorter ones the pauses grow."""
_MAX_ANSWERS = 16
_LOST = ""
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
        self._answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(maxsize=_MAX_ANSWERS)
        self._link_is_up = asyncio.Event()
        self._lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._pause_s = _FIRST_PAUSE_S
        self.is_welcome = False
        self.is_admitted = False
        """Whether the hub takes answers from this peer; calls may follow a welcome before it has been digested."""
        self.refusal: Denied | None = None
        """The last refusal, until a welcome comes."""
        self.replaced: Conflict | None = None
        """Set for good once another process with the same credential has taken this peer's place."""

    async def changed(self) -> None:
        """Wait until ``is_welcome``, ``refusal`` or ``replaced`` may have changed."""
        await self._changed.wait()

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
        self._lost.set()
        self._keep_answer(_LOST, reason)
        if self.is_welcome:
            self.is_welcome = False
            self._on_loss(reason)
        self._announce_change()

    def take(self, kind: str, body: Any) -> None:
        """Accept a message of the handshake."""
        if kind == wire.BYE:
            farewell = body if isinstance(body, dict) else {}
            reason = str(farewell.get("reason", "the kernel dropped this peer"))
            if farewell.get("replaced"):
                self.replaced = Conflict(reason, hint="two processes use one key; stop one of them")
            self.lose(reason)
        elif kind in (wire.CHALLENGE, wire.WELCOME, wire.ERROR):
            self.is_admitted = self.is_admitted or kind == wire.WELCOME
            self._keep_answer(kind, body)
        else:
            _log.warning("the hub sent a message without an id", kind=kind)

    async def run(self) -> None:
        """Keep the peer welcome until cancelled, or replaced by another process."""
        loop = asyncio.get_running_loop()
        while self.replaced is None:
            await self._link_is_up.wait()
            self._lost.clear()
            self._forget_answers()
            try:
                welcome = await self._shake_hands()
            except HomeAgentError as error:
                self._note_failure(error)
            else:
                begun = loop.time()
                self.refusal = None
                self.is_welcome = True
                self._announce_change()
                await self._on_welcome(welcome)
                await self._lost.wait()
                if loop.time() - begun > _STABLE_AFTER_S:
                    self._pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        _log.error("this peer stays out", reason=str(self.replaced))
        self._announce_change()

    def _note_failure(self, error: HomeAgentError) -> None:
        _log.info("not welcomed yet", reason=str(error))
        if isinstance(error, Denied):
            self.refusal = error
            self._announce_change()

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _keep_answer(self, kind: str, body: Any) -> None:
        """Keep what the handshake waits for; of more than it can need, the oldest goes."""
        if self._answers.full():
            self._answers.get_nowait()
        self._answers.put_nowait((kind, body))

    def _forget_answers(self) -> None:
        while not self._answers.empty():
            self._answers.get_nowait()

    async def _shake_hands(self) -> Welcome:
        """Say hello, answer the challenge, and read the welcome.

        :raises Denied: the hub does not want this peer
        :raises HomeAgentError: it did not work out this time
        """
        try:
            secret = await self._credential.secret()
            hello = {
                "name": secret.name,
                "generation": secret.generation,
                "protocols": sorted(wire.ACCEPTED),
                "sdk": __version__,
                "pid": os.getpid(),
            }
            self._send(wire.HELLO, hello)
            nonce = bytes((await self._expect(wire.CHALLENGE))["nonce"])
            self._send(wire.HELLO, {**hello, "nonce": nonce, "proof": secret.proof(nonce)})
            answer = await self._expect(wire.WELCOME)
            return Welcome(str(answer["epoch"]), str(answer["name"]), str(answer["tier"]), str(answer["session"]))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise Invalid(f"the handshake went wrong: {error!r}") from error

    async def _expect(self, expected: str) -> dict[str, Any]:
        try:
            kind, body = await asyncio.wait_for(self._answers.get(), _STEP_TIMEOUT_S)
        except TimeoutError as error:
            raise TimedOut("the kernel did not answer the hello") from error
        if kind == _LOST or self._lost.is_set():
            raise Unavailable(str(body) if kind == _LOST else "the kernel is gone")
        if kind == wire.ERROR:
            raise from_wire(body)
        if kind != expected or not isinstance(body, dict):
            raise Invalid(f"the kernel answered {kind} where {expected} was due")
        return body
