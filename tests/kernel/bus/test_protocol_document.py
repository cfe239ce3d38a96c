"""docs/protocol.md is complete and true: its tables, its bytes, and a peer that was written from it alone."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from homeagent_sdk.bus import CallContext, prove, wire
from homeagent_sdk.bus.incoming import MAX_SERVED
from homeagent_sdk.errors import CODES
from kernel.bus import Hub, access, admission, event_ring, hub_methods, membership, peers, routes
from kernel.bus import exchange as exchange_module
from kernel.bus.hub import PING_INTERVAL_S
from kernel.bus.parking import MAX_PARKED, MAX_PARKED_BYTES
from tests.kernel.bus.conftest import KEYS, MakePeer, until

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PLUGIN_METHODS = {f"<plugin>.{verb}": callers for verb, callers in access.PLUGIN_VERBS.items()}


def section(title: str) -> str:
    """Return a chapter of the page, by the beginning of its heading."""
    return re.split(r"^## ", TEXT.split(f"\n## {title}", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows in a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


def test_the_page_is_of_the_version_that_is_spoken() -> None:
    assert TEXT.startswith(f"# The bus protocol, version {wire.PROTOCOL}\n")


def test_every_kind_is_in_the_table_and_no_other() -> None:
    table = rows(section("2.").split("### Kinds")[1])[1:]
    assert {row[0].strip("`") for row in table} == wire.KINDS


def test_every_header_field_is_described() -> None:
    described = {row[0].strip("`") for row in rows(section("2.").split("### Header")[1].split("### Kinds")[0])[1:]}
    full = wire.decode_header(
        wire.encode_header("call", call_id=1, method="a.b", deadline_ms=1, trace="t", number=1, origin={})
    )
    event = wire.decode_header(event_ring.EventRing("e").append("a", b"\xc0")[1])
    assert described == set(full) | set(event)


def test_every_error_code_is_described_and_no_other() -> None:
    assert {row[0].strip("`") for row in rows(section("5."))[1:]} == CODES


def test_the_table_of_rights_is_that_of_the_hub() -> None:
    table = rows(section("7."))
    assert table[0] == ["method", *access.TIERS, "by name"]
    documented = {}
    for method, *cells, by_name in table[1:]:
        tiers = {tier for tier, cell in zip(access.TIERS, cells, strict=True) if cell == "yes"}
        documented[method.strip("`")] = tiers | set(re.findall(r"=[a-z]+", by_name))
    assert documented == {**access.METHODS, **PLUGIN_METHODS}
    for name in access.RESERVED:
        assert f"`{name}`" in section("7.")


def test_every_method_has_its_bodies_described_and_no_other() -> None:
    described = {row[0].strip("`") for row in rows(section("10.")) if row[0].startswith("`")}
    assert described == set(access.METHODS) | set(PLUGIN_METHODS)
    assert {method for method in described if method.startswith("hub.")} == hub_methods.HubMethods(
        None,
        None,
        None,  # type: ignore[arg-type]
    ).names


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ("header", [wire.MAX_HEADER_BYTES]),
        ("frames of a message", [wire.MAX_FRAMES]),
        ("a message, all frames", [wire.MAX_MESSAGE_BYTES]),
        ("body of a hello", [membership.MAX_HELLO_BYTES]),
        ("body of a call to `hub.*`", [exchange_module.MAX_HUB_BODY_BYTES, exchange_module._MAX_HUB_ITEMS]),
        ("payload of an event", [wire.MAX_EVENT_BYTES]),
        ("the ring", [event_ring.MAX_EVENTS, event_ring.MAX_BYTES, event_ring.MAX_TOPICS]),
        ("one replay", [event_ring.REPLAY_EVENTS, event_ring.REPLAY_BYTES]),
        ("topics of one `hub.positions`", [hub_methods.MAX_POSITION_TOPICS]),
        ("calls under way", [routes.MAX_PER_CALLER, routes.MAX_ROUTES]),
        ("calls that wait for a service", [MAX_PARKED, MAX_PARKED_BYTES]),
        ("messages that wait for a slow peer", [peers.OUTBOX_MESSAGES, peers.OUTBOX_BYTES]),
        ("the same with answers that wait for it", [peers.OUTBOX_ANSWER_MESSAGES, peers.OUTBOX_ANSWER_BYTES]),
        ("remembered early cancels", [peers.MAX_EARLY_CANCELS]),
        ("stream window", [wire.MAX_WINDOW]),
        ("deadline", [wire.MAX_DEADLINE_MS]),
        ("tokens not used yet", [admission.MAX_TOKENS, admission.TOKEN_LIFE_S]),
        ("calls that a peer answers at a time (sdk)", [MAX_SERVED]),
    ],
)
def test_the_limits_are_those_of_the_code(row: str, numbers: list[float]) -> None:
    table = {cells[0]: cells[1] for cells in rows(section("9."))[1:]}
    assert [int(number) for number in re.findall(r"\d+", table[row])] == numbers


def test_no_limit_is_missing() -> None:
    """A constant that begins with MAX_ in the hub or the wire format has its row, or is named here with the reason."""
    apart = {
        "MAX_TRACE_CHARACTERS": "header table",
        "MAX_METHOD_CHARACTERS": "header table",
        "MAX_LAG_S": "hub.lag",
        "MAX_SEEN": "memory of names only",
    }
    documented = test_the_limits_are_those_of_the_code.pytestmark[0].args[1]  # type: ignore[attr-defined]
    values = {number for _, numbers in documented for number in numbers}
    for path in [*(ROOT / "kernel" / "bus").glob("*.py"), ROOT / "sdk" / "homeagent_sdk" / "bus" / "wire.py"]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id.startswith("MAX_") and target.id not in apart:
                assert node.value is not None
                assert eval(compile(ast.Expression(node.value), "", "eval"), vars(wire)) in values, target.id


def test_the_numbers_in_the_prose_are_those_of_the_code() -> None:
    assert f"more than {wire.MAX_DEADLINE_MS} counts" in section("2.")
    assert f"absent: {wire.DEFAULT_DEADLINE_S * 1000:.0f}" in section("2.")
    assert f"at most {wire.MAX_METHOD_CHARACTERS} characters" in section("2.")
    assert f"at most {wire.MAX_TRACE_CHARACTERS} characters" in section("2.")
    assert f"longer than {wire.BLOB_THRESHOLD_BYTES} leave the body" in section("2.")
    assert f"a `nonce` of {admission.NONCE_BYTES} bytes, good for ten seconds" in section("3.")
    assert admission.CHALLENGE_LIFE_S == 10
    assert f"every {PING_INTERVAL_S:.0f} s" in section("8.")
    assert f"after {membership.GONE_AFTER_S:.0f} s of silence" in section("8.")
    assert membership.MISSES_TO_SUSPECT == 3
    assert f"{wire.DEFAULT_WINDOW} is usual" in section("4.")


def test_the_examples_are_true_to_the_byte() -> None:
    lines = [line[11:] for block in section("11.").split("```")[1::2] for line in block.splitlines() if line.strip()]
    checked = 0
    for line, below in itertools.pairwise(lines):
        if line.startswith("{"):
            assert msgpack.packb(json.loads(line)).hex() == below
            checked += 1
    assert checked >= 15
    assert wire.decode_body([bytes.fromhex(lines[-1]), b"blob"]) == {"data": b"blob"}
    assert prove("0123456789abcdef0123456789abcdef", "memory", bytes(range(40))).hex() in section("11.")


# -- the stranger -----------------------------------------------------------------------------------------------------


def test_the_stranger_knows_nothing_of_us() -> None:
    source = (Path(__file__).with_name("stranger.py")).read_text(encoding="utf-8")
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported - set(sys.stdlib_module_names) == {"msgpack", "zmq"}


class Heard(list[dict[str, Any]]):
    """What the stranger has printed."""

    def first(self, key: str) -> Any:
        return next((fact for fact in self if key in fact), None)


@pytest.fixture
async def stranger(hub: Hub, tmp_path: Path) -> AsyncIterator[Heard]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__).with_name("stranger.py"),
        tmp_path,
        KEYS["provider"],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    heard = Heard()

    async def listen() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            heard.append(json.loads(line))

    listening = asyncio.create_task(listen())
    yield heard
    assert process.stdin is not None
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 5) == 0
    await listening


async def test_a_peer_written_from_the_page_takes_part(
    hub: Hub, make_peer: MakePeer, stranger: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def status(body: Any, call: CallContext) -> Any:
        assert (call.origin.name, call.origin.tier) == ("provider", "service")
        return {"ready": True, "you_said": body}

    kernel = await make_peer("kernel", serve={"kernel.status": status})
    await until(lambda: stranger.first("subscribed"), 15)
    assert stranger.first("joined") == {"joined": "provider", "tier": "service"}

    assert await kernel.call("provider.sources", {"text": "猫"}, timeout_s=5) == {"text": "猫"}
    large = bytes(100_000)
    assert await kernel.call("provider.sources", large, timeout_s=5) == large
    assert await kernel.call("provider.usage", timeout_s=5) == {"ready": True, "you_said": {"asked_by": "kernel"}}
    assert 0 < stranger.first("left_ms")["left_ms"] <= 5000
    assert [item async for item in kernel.stream("provider.chat", 50, window=4)] == list(range(50))
    async with kernel.stream("provider.chat", 50, window=4) as items:
        async for _ in items:
            break
    await until(lambda: stranger.first("cancelled"))

    emit = hub._emit
    lost = [b"turn.started"]
    monkeypatch.setattr(hub, "_emit", lambda frames: None if frames[0] in lost else emit(frames))
    await kernel.publish("turn.started", 1)
    await kernel.call("hub.positions", {"topics": []})
    lost.clear()
    for number in (2, 3):
        await kernel.publish("turn.started", number)
    await kernel.publish("turn.finished", "first")
    await until(lambda: sum("event" in fact for fact in stranger) == 4)
    assert [fact["payload"] for fact in stranger if fact.get("event") == "turn.started"] == [1, 2, 3]
    await until(lambda: stranger.first("pinged"), 5)
