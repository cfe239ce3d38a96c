"""Keys, proofs, and the line between a plugin and its supervisor."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homeagent_sdk.bus import Credential, TokenChannel, prove
from homeagent_sdk.errors import Denied, Unavailable


class Supervisor:
    """The other end of a token channel."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_unix_connection(sock=self._end)

    async def say(self, line: bytes) -> None:
        self.writer.write(line)
        await self.writer.drain()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def line() -> AsyncIterator[tuple[TokenChannel, Supervisor]]:
    ours, theirs = socket.socketpair()
    channel = Credential.from_token_channel(ours.detach())
    supervisor = Supervisor(theirs)
    await supervisor.open()
    yield channel, supervisor
    await channel.close()
    await supervisor.close()


Line = tuple[TokenChannel, Supervisor]


def answer(token: str = "t" * 64, generation: int = 3) -> bytes:
    return json.dumps({"name": "echo", "token": token, "generation": generation}).encode() + b"\n"


async def test_a_token_is_asked_for_each_hello(line: Line) -> None:
    channel, supervisor = line
    for token in ("first", "second"):
        asked = asyncio.create_task(channel.secret())
        assert await supervisor.reader.readline() == b"token\n"
        await supervisor.say(answer(token))
        secret = await asked
        assert (secret.name, secret.secret, secret.generation) == ("echo", token, 3)


async def test_two_hellos_at_a_time_do_not_mix_their_tokens(line: Line) -> None:
    channel, supervisor = line
    both = asyncio.gather(channel.secret(), channel.secret())
    for token in ("first", "second"):
        assert await supervisor.reader.readline() == b"token\n"
        await supervisor.say(answer(token))
    assert sorted(secret.secret for secret in await both) == ["first", "second"]


@pytest.mark.parametrize(
    "reply",
    [b"not json\n", b"[]\n", b"7\n", b"{}\n", b'{"name": "echo", "token": "x", "generation": "many"}\n', b"\xff\xfe\n"],
)
async def test_an_answer_that_cannot_be_read_is_unavailable_and_the_next_one_counts(line: Line, reply: bytes) -> None:
    channel, supervisor = line
    asked = asyncio.create_task(channel.secret())
    await supervisor.reader.readline()
    await supervisor.say(reply)
    with pytest.raises(Unavailable):
        await asked
    again = asyncio.create_task(channel.secret())
    await supervisor.reader.readline()
    await supervisor.say(answer())
    assert (await again).name == "echo"


async def test_a_refusal_says_why(line: Line) -> None:
    channel, supervisor = line
    asked = asyncio.create_task(channel.secret())
    await supervisor.say(b'{"error": "the kernel is not up"}\n')
    with pytest.raises(Unavailable, match="the kernel is not up"):
        await asked


async def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, supervisor = line
    monkeypatch.setattr("homeagent_sdk.bus.credential._TOKEN_TIMEOUT_S", 0.05)
    with pytest.raises(Unavailable, match="in time"):
        await channel.secret()
    await supervisor.say(answer("late"))
    while channel._answers.empty():  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)
    asked = asyncio.create_task(channel.secret())
    await supervisor.reader.readline()
    await supervisor.reader.readline()
    await supervisor.say(answer("fresh"))
    assert (await asked).secret == "fresh"


async def test_the_end_of_the_supervisor_is_noticed(line: Line) -> None:
    channel, supervisor = line
    asked = asyncio.create_task(channel.secret())
    await supervisor.reader.readline()
    await supervisor.close()
    with pytest.raises(Unavailable, match="gone"):
        await asked
    await asyncio.wait_for(channel.closed.wait(), 1)
    with pytest.raises(Unavailable):
        await channel.secret()
    with pytest.raises(Unavailable):
        await channel.report("running")


async def test_a_line_without_an_end_is_the_end_of_the_channel(line: Line) -> None:
    channel, supervisor = line
    asked = asyncio.create_task(channel.secret())
    await supervisor.say(b"x" * 100_000)
    with pytest.raises(Unavailable):
        await asked
    assert channel.closed.is_set()


async def test_states_are_reported_as_lines(line: Line) -> None:
    channel, supervisor = line
    await channel.report("running")
    await channel.report("failed", "y" * 5000)
    assert json.loads(await supervisor.reader.readline()) == {"state": "running", "reason": ""}
    assert len(json.loads(await supervisor.reader.readline())["reason"]) == 1000


async def test_a_channel_that_was_never_used_is_closed_without_a_trace() -> None:
    ours, theirs = socket.socketpair()
    descriptor = ours.detach()
    channel = TokenChannel(descriptor)
    await channel.close()
    assert theirs.recv(1) == b""
    theirs.close()


def test_a_key_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "memory.key"
    path.write_text("k" * 64 + "\n")
    credential = Credential.from_key_file("memory", path)
    assert asyncio.run(credential.secret()).secret == "k" * 64


@pytest.mark.parametrize("content", [None, b"", b"short\n", b"\xff" * 64])
def test_a_key_file_that_is_none_is_refused_with_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "memory.key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Denied, match=r"memory\.key.*homeagent up"):
        Credential.from_key_file("memory", path)


def test_a_proof_is_an_hmac_over_name_and_nonce() -> None:
    proof = prove("0123456789abcdef0123456789abcdef", "memory", bytes(range(40)))
    assert proof.hex() == "703dc02ca2f6acbf1cc0709cd213af7b4a1d35ddd7455b5efcda433347e32b72"
