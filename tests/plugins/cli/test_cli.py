from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from homeagent_sdk.errors import Denied, Overloaded
from homeagent_sdk.paths import short_socket_path
from homeagent_sdk.testing import FakeKernel
from plugins.cli.connection import TURNS_AT_ONCE
from plugins.cli.lines import LINE_LIMIT_BYTES, read_lines
from plugins.cli.main import build
from plugins.cli.socket_server import CLIENTS, check_owner
from tests.plugins.live_kernel import LiveKernel

FOLDER = Path("plugins/cli").resolve()


class Client:
    """A client of the socket, as the protocol describes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, request: Any) -> None:
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        self.writer.write(line)
        await self.writer.drain()

    async def line(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            received = await self.reader.readline()
        assert received.endswith(b"\n"), "the connection has ended"
        found: dict[str, Any] = json.loads(received)
        return found

    async def ask(self, request: Any) -> dict[str, Any]:
        await self.send(request)
        return await self.line()

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read() is not None
            except ConnectionError:
                return True


@asynccontextmanager
async def connected(data_dir: Path) -> AsyncIterator[Client]:
    with short_socket_path(data_dir / "chat.sock") as path:
        reader, writer = await asyncio.open_unix_connection(path, limit=32 * 1024 * 1024)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
async def kernel(tmp_path: Path) -> AsyncIterator[FakeKernel]:
    kernel = FakeKernel()
    async with kernel.run(build(), FOLDER, tmp_path / "cli"):
        yield kernel


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveKernel]:
    kernel = LiveKernel()
    async with kernel.run(build(), FOLDER, tmp_path / "cli"):
        yield kernel


@pytest.fixture
async def client(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    request.getfixturevalue("live" if "live" in request.fixturenames else "kernel")
    async with connected(tmp_path / "cli") as client:
        yield client


def say(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"op": "send", "conversation": "main", "text": text, **more}


async def test_a_text_is_accepted_followed_and_answered(kernel: FakeKernel, client: Client) -> None:
    accepted = await client.ask(say(no_memory=True))
    assert accepted == {"type": "accepted", "turn_id": "t1", "status": "accepted"}
    items = [await client.line() for _ in range(3)]
    assert [item["type"] for item in items] == ["started", "delta", "outcome"]
    assert all(item["turn_id"] == "t1" for item in items)
    assert items[-1]["text"] == "hi"
    (submission,) = kernel.submissions
    assert (submission["channel"], submission["conversation"]) == ("cli", "main")
    assert (submission["principal"], submission["no_memory"]) == ("owner", True)


async def test_the_same_delivery_is_the_same_turn(kernel: FakeKernel, client: Client) -> None:
    for status in ("accepted", "duplicate"):
        assert (await client.ask(say(delivery_id="d1")))["status"] == status
        for _ in range(3):
            assert (await client.line())["turn_id"] == "t1"


async def test_an_id_is_repeated_on_every_line_that_answers(kernel: FakeKernel, client: Client) -> None:
    await client.send(say(id=7))
    assert [(await client.line())["id"] for _ in range(4)] == [7] * 4
    assert (await client.ask({"op": "nothing", "id": "x"}))["id"] == "x"


async def test_history_and_stop(kernel: FakeKernel, client: Client) -> None:
    await client.send(say("one"))
    for _ in range(4):
        await client.line()
    history = await client.ask({"op": "history", "conversation": "main"})
    assert history["type"] == "history"
    assert [(turn["text"], turn["answer"]) for turn in history["turns"]] == [("one", "one")]
    assert await client.ask({"op": "stop", "conversation": "main"}) == {"type": "stop", "stopped": True}
    assert kernel.stops == [{"channel": "cli", "conversation": "main"}]


async def test_a_turn_can_be_followed_by_another_client(live: LiveKernel, client: Client, tmp_path: Path) -> None:
    await client.ask(say())
    feed = await live.feed()
    async with connected(tmp_path / "cli") as other:
        await other.send({"op": "follow", "turn_id": "t1"})
        await feed.say("Hel")
        await feed.end("Hello")
        for each in (client, other):
            assert [(await each.line())["type"] for _ in range(3)] == ["started", "delta", "outcome"]


async def test_a_client_that_goes_does_not_stop_its_turn(live: LiveKernel, tmp_path: Path) -> None:
    async with connected(tmp_path / "cli") as client:
        await client.ask(say())
    async with connected(tmp_path / "cli") as client:
        await (await live.feed()).end("done")
        await client.send({"op": "follow", "turn_id": "t1"})
        await client.line()
        assert (await client.line())["text"] == "done"
    assert live.stops == []


async def test_a_client_that_only_ends_its_own_side_still_gets_its_answer(live: LiveKernel, client: Client) -> None:
    await client.send(say())
    client.writer.write_eof()
    await client.line()
    await (await live.feed()).end("late")
    assert (await client.line())["type"] == "started"
    assert (await client.line())["text"] == "late"
    assert await client.ended()


async def test_a_restart_of_the_kernel_in_between_is_a_reset(live: LiveKernel, client: Client) -> None:
    await client.ask(say())
    feed = await live.feed()
    await feed.say("Hel")
    assert [(await client.line())["type"] for _ in range(2)] == ["started", "delta"]
    await feed.cut_off({"type": "delta", "text": "Hi"})
    await feed.end("Hi")
    assert [(await client.line())["type"] for _ in range(3)] == ["reset", "delta", "outcome"]


@pytest.mark.parametrize(
    ("request_line", "field"),
    [
        (b"{\n", None),
        (b"[1]\n", None),
        (b"\xff\n", None),
        (b"[" * 100_000 + b"\n", None),
        ({"op": "dance"}, "op"),
        ({}, "op"),
        ({"op": "send", "conversation": "main"}, "text"),
        ({"op": "send", "conversation": "main", "text": "  "}, "text"),
        ({"op": "send", "conversation": "main", "text": "\ud800"}, "text"),
        ({"op": "send", "text": "hi"}, "conversation"),
        ({"op": "send", "text": "hi", "conversation": "a\nb"}, "conversation"),
        ({"op": "send", "text": "hi", "conversation": "x" * 201}, "conversation"),
        ({"op": "send", "text": "hi", "conversation": "main", "delivery_id": 5}, "delivery_id"),
        ({"op": "follow"}, "turn_id"),
    ],
)
async def test_bad_input_gets_an_error_and_the_connection_lives_on(
    kernel: FakeKernel, client: Client, request_line: Any, field: str | None
) -> None:
    answer = await client.ask(request_line)
    assert answer["type"] == "error"
    assert (answer["error"]["code"], answer["error"]["field"]) == ("invalid", field)
    assert answer["error"]["message"]
    assert kernel.submissions == []
    assert (await client.ask(say()))["type"] == "accepted"


async def test_an_unknown_turn_is_told(kernel: FakeKernel, client: Client) -> None:
    answer = await client.ask({"op": "follow", "turn_id": "t99", "id": 1})
    assert (answer["error"]["code"], answer["turn_id"], answer["id"]) == ("not_found", "t99", 1)


async def test_a_refusal_of_the_kernel_is_told(kernel: FakeKernel, client: Client) -> None:
    kernel.submit_errors.append(Overloaded("the queue is full", hint="wait"))
    error = (await client.ask(say()))["error"]
    assert error == {"code": "overloaded", "message": "the queue is full", "hint": "wait", "field": None}


async def test_an_unforeseen_failure_tells_no_details(
    kernel: FakeKernel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins.cli.connection._text", lambda *_: 1 / 0)
    answer = await client.ask(say())
    assert answer["error"]["code"] == "internal"
    assert "division" not in answer["error"]["message"]


async def test_a_line_over_the_limit_gets_one_error_and_the_next_is_read(kernel: FakeKernel, client: Client) -> None:
    sending = asyncio.create_task(client.send(b"x" * (3 * LINE_LIMIT_BYTES) + b"\n"))
    assert "1 MiB" in (await client.line())["error"]["message"]
    await sending
    assert (await client.ask(say()))["type"] == "accepted"


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n", b"c"], [b"ab", b"c"]),
        ([b"\n\n"], [b"", b""]),
        ([b"xxxxxx", b"xxxxxx", b"xx\nok\n"], [None, b"ok"]),
        ([b"xxxxxxxxxxxx\nok\n"], [None, b"ok"]),
        ([b"xxxxxxxxxxxx"], [None]),
        ([b"xxxxxxxx\n"], [b"xxxxxxxx"]),
    ],
)
async def test_lines_are_cut_where_they_end(
    monkeypatch: pytest.MonkeyPatch, chunks: list[bytes], expected: list[bytes | None]
) -> None:
    monkeypatch.setattr("plugins.cli.lines.LINE_LIMIT_BYTES", 8)
    reader = asyncio.StreamReader()
    read: list[bytes | None] = []
    task = asyncio.create_task(_collect(reader, read))
    for chunk in chunks:
        reader.feed_data(chunk)
        await asyncio.sleep(0)
    reader.feed_eof()
    await task
    assert read == expected


async def _collect(reader: asyncio.StreamReader, into: list[bytes | None]) -> None:
    async for line in read_lines(reader):
        into.append(line if isinstance(line, bytes) else None)  # noqa: PERF401


async def test_what_the_agent_says_by_itself_goes_to_all_clients_of_the_conversation(
    kernel: FakeKernel, client: Client, tmp_path: Path
) -> None:
    async with connected(tmp_path / "cli") as other, connected(tmp_path / "cli") as elsewhere:
        for each, name in ((client, "main"), (other, "main"), (elsewhere, "else")):
            await each.ask({"op": "history", "conversation": name})
        receipt = await kernel.send_output("cli", "cli", "Ding", conversation="main", output_id="t5")
        assert receipt["status"] == "ok"
        for each in (client, other):
            told = await each.line()
            assert (told["type"], told["text"], told["conversation"], told["turn_id"]) == (
                "output",
                "Ding",
                "main",
                "t5",
            )
        assert (await elsewhere.ask({"op": "stop", "conversation": "else"}))["type"] == "stop"


async def test_an_output_that_nobody_sees_is_unconfirmed(kernel: FakeKernel) -> None:
    assert (await kernel.send_output("cli", "cli", "Ding", conversation="main"))["status"] == "unconfirmed"


async def test_a_client_that_reads_nothing_is_cut_off_and_harms_nobody(
    kernel: FakeKernel, client: Client, tmp_path: Path
) -> None:
    await client.ask({"op": "history", "conversation": "main"})
    client.reader.set_exception(RuntimeError("not read in this test"))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    large = "x" * 100_000
    for number in range(400):
        sent = await kernel.send_output("cli", "cli", large, conversation="main", output_id=f"o{number}")
        if sent["status"] == "unconfirmed":
            break
    else:
        pytest.fail("the slow client was never cut off")
    async with connected(tmp_path / "cli") as other:
        assert (await other.ask(say()))["type"] == "accepted"


async def test_a_client_follows_a_limited_number_of_turns(live: LiveKernel, client: Client) -> None:
    for number in range(TURNS_AT_ONCE):
        await client.send(say(str(number)))
        await live.feed(f"t{number + 1}")
    await client.send(say("one too many", id="last"))
    async with asyncio.timeout(10):
        while (answer := await client.line()).get("id") != "last":
            pass
    assert answer["error"]["code"] == "overloaded"
    assert len(live.submissions) == TURNS_AT_ONCE


async def test_the_number_of_clients_is_limited(kernel: FakeKernel, tmp_path: Path) -> None:
    async with connected(tmp_path / "cli") as first:
        others = [connected(tmp_path / "cli") for _ in range(CLIENTS - 1)]
        for other in others:
            await (await other.__aenter__()).ask({"op": "stop", "conversation": "c"})
        await first.ask({"op": "stop", "conversation": "c"})
        async with connected(tmp_path / "cli") as refused:
            assert (await refused.line())["error"]["code"] == "overloaded"
            assert await refused.ended()
        for other in others:
            await other.__aexit__(None, None, None)


async def test_only_the_owner_may_use_the_socket(kernel: FakeKernel, tmp_path: Path) -> None:
    mode = (tmp_path / "cli" / "chat.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_process_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connected:
        def __init__(self, uid: int) -> None:
            self.uid = uid

        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
            return struct.pack("3i", 1, self.uid, self.uid)

    check_owner(Connected(os.getuid()))  # type: ignore[arg-type]
    check_owner(Connected(0))  # type: ignore[arg-type]
    with pytest.raises(Denied):
        check_owner(Connected(os.getuid() + 12345))  # type: ignore[arg-type]


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    data_dir = tmp_path / "cli"
    data_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as dead, short_socket_path(data_dir / "chat.sock") as path:
        dead.bind(path)
    kernel = FakeKernel()
    async with kernel.run(build(), FOLDER, data_dir), connected(data_dir) as client:
        assert (await client.ask(say()))["type"] == "accepted"
    assert not (data_dir / "chat.sock").exists()


async def test_a_path_that_is_too_long_for_a_socket_works(tmp_path: Path) -> None:
    data_dir = tmp_path / ("x" * 100) / "cli"
    kernel = FakeKernel()
    async with kernel.run(build(), FOLDER, data_dir), connected(data_dir) as client:
        assert (await client.ask(say()))["type"] == "accepted"


async def test_stopping_the_plugin_lets_the_clients_go(tmp_path: Path) -> None:
    kernel = LiveKernel()
    async with kernel.run(build(), FOLDER, tmp_path / "cli"):
        manager = connected(tmp_path / "cli")
        client = await manager.__aenter__()
        await client.ask(say())
    assert await client.ended()
    await manager.__aexit__(None, None, None)
