"""The handshake, seen from the peer: what it does with every answer that a hub could give."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from homeagent_sdk.bus import Credential, KeyCredential, Secret, prove, wire
from homeagent_sdk.bus.session import Session, Welcome
from homeagent_sdk.errors import Denied, Unavailable

WELCOME = {"epoch": "e1", "name": "memory", "tier": "service", "session": "s1"}


class Hub:
    """The other side of a :class:`Session`."""

    def __init__(self, credential: Credential | None = None) -> None:
        self.said: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.welcomes: list[Welcome] = []
        self.losses: list[str] = []
        self.session = Session(
            credential or KeyCredential("memory", "k" * 40),
            lambda kind, body: self.said.put_nowait((kind, body)),
            self._welcomed,
            self.losses.append,
        )
        self.task = asyncio.create_task(self.session.run())

    async def _welcomed(self, welcome: Welcome) -> None:
        self.welcomes.append(welcome)

    async def hear(self) -> Any:
        kind, body = await asyncio.wait_for(self.said.get(), 3)
        assert kind == wire.HELLO
        return body

    async def welcome(self, **changes: Any) -> None:
        assert "proof" not in await self.hear()
        self.session.take(wire.CHALLENGE, {"nonce": b"n" * 40, "epoch": "e1"})
        answer = await self.hear()
        assert answer["nonce"] == b"n" * 40
        assert answer["proof"] == prove("k" * 40, "memory", b"n" * 40)
        self.session.take(wire.WELCOME, {**WELCOME, **changes})
        while not self.session.is_welcome:
            await self.session.changed()
        await asyncio.sleep(0)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    hub = Hub()
    yield hub
    hub.task.cancel()
    await asyncio.gather(hub.task, return_exceptions=True)


async def test_nothing_is_said_before_the_link_is_up(hub: Hub) -> None:
    await asyncio.sleep(0.01)
    assert hub.said.empty()
    hub.session.link_up()
    await hub.welcome()
    assert hub.welcomes == [Welcome("e1", "memory", "service", "s1")]


async def test_after_a_loss_it_says_hello_again(hub: Hub) -> None:
    hub.session.link_up()
    await hub.welcome()
    hub.session.link_down()
    assert hub.losses == ["the kernel is gone"]
    assert not hub.session.is_welcome
    hub.session.link_up()
    await hub.welcome(epoch="e2")
    assert [welcome.epoch for welcome in hub.welcomes] == ["e1", "e2"]


async def test_a_loss_in_the_middle_of_a_handshake_begins_it_anew_at_once(hub: Hub) -> None:
    hub.session.link_up()
    await hub.hear()
    hub.session.link_down()
    hub.session.link_up()
    async with asyncio.timeout(1):
        await hub.welcome()


async def test_a_bye_right_behind_the_welcome_is_no_welcome(hub: Hub) -> None:
    hub.session.link_up()
    await hub.hear()
    hub.session.take(wire.CHALLENGE, {"nonce": b"n" * 40})
    await hub.hear()
    hub.session.take(wire.WELCOME, WELCOME)
    hub.session.take(wire.BYE, {"reason": "the kernel is stopping"})
    await asyncio.sleep(0)
    assert not hub.session.is_welcome
    assert not hub.session.is_admitted
    await hub.welcome()
    assert len(hub.welcomes) == 1


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (wire.CHALLENGE, {}),
        (wire.CHALLENGE, {"nonce": "text"}),
        (wire.CHALLENGE, None),
        (wire.CHALLENGE, [1]),
        (wire.WELCOME, WELCOME),
        (wire.ERROR, None),
        (wire.ERROR, {"code": "overloaded", "message": "later"}),
        (wire.BYE, [1]),
        (wire.NEXT, 1),
    ],
)
async def test_whatever_the_hub_answers_the_peer_tries_again(hub: Hub, kind: str, body: Any) -> None:
    hub.session.link_up()
    await hub.hear()
    hub.session.take(kind, body)
    if kind == wire.NEXT:
        hub.session.link_down()
        hub.session.link_up()
    await hub.welcome()


async def test_a_welcome_without_its_fields_is_none(hub: Hub) -> None:
    hub.session.link_up()
    await hub.hear()
    hub.session.take(wire.CHALLENGE, {"nonce": b"n" * 40})
    await hub.hear()
    hub.session.take(wire.WELCOME, {"epoch": "e1"})
    await hub.welcome()


async def test_a_refusal_is_kept_until_a_welcome(hub: Hub) -> None:
    hub.session.link_up()
    await hub.hear()
    hub.session.take(wire.ERROR, Denied("wrong key").to_wire())
    while hub.session.refusal is None:
        await hub.session.changed()
    assert hub.session.refusal.message == "wrong key"
    await hub.welcome()
    assert hub.session.refusal is None


async def test_who_is_replaced_stays_out(hub: Hub) -> None:
    hub.session.link_up()
    await hub.welcome()
    hub.session.take(wire.BYE, {"reason": "another process has joined as memory", "replaced": True})
    await asyncio.wait_for(hub.task, 2)
    assert hub.session.replaced is not None
    assert "another process" in hub.session.replaced.message
    assert hub.said.empty()


async def test_welcomes_that_do_not_last_are_asked_for_less_and_less_often(hub: Hub) -> None:
    hub.session.link_up()
    pauses = []
    for _ in range(4):
        await hub.welcome()
        pauses.append(hub.session._pause_s)
        hub.session.take(wire.BYE, {"reason": "sent garbage"})
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 8 * 0.05


async def test_a_credential_that_cannot_be_had_is_asked_again() -> None:
    class Late(Credential):
        asked = 0

        async def secret(self) -> Secret:
            self.asked += 1
            if self.asked == 1:
                raise Unavailable("the plugin host gave no token")
            if self.asked == 2:
                raise OSError("a broken line")
            return Secret("memory", "k" * 40)

    hub = Hub(Late())
    hub.session.link_up()
    await hub.welcome()
    hub.task.cancel()
    await asyncio.gather(hub.task, return_exceptions=True)
