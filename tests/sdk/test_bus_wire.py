"""The wire format: what comes back is what went in, and what is not a message is refused in words."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homeagent_sdk.bus import wire
from homeagent_sdk.errors import Invalid

T = wire.BLOB_THRESHOLD_BYTES
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars | st.binary(max_size=200) | st.sampled_from([b"b" * T, b"c" * (T + 1), b"d" * (T + 7)]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_body_comes_back_as_it_was(value: Any) -> None:
    frames = wire.encode_body(value)
    assert len(frames) <= wire.MAX_FRAMES - 1
    assert wire.decode_body(frames) == value


@pytest.mark.parametrize(("size", "blobs"), [(T - 1, 0), (T, 0), (T + 1, 1)])
@pytest.mark.parametrize("deep", [False, True])
def test_bytes_become_blobs_just_above_the_threshold(size: int, blobs: int, deep: bool) -> None:
    value: Any = {"data": b"x" * size} if not deep else {"list": [[{"data": b"x" * size}]]}
    frames = wire.encode_body(value)
    assert len(frames) == 1 + blobs
    assert wire.decode_body(frames) == value


def test_a_blob_is_named_by_four_bytes_big_endian() -> None:
    frames = wire.encode_body([b"a" * (T + 1), b"b" * (T + 1)])
    assert frames[0] == bytes.fromhex("92 d6 01 00000000 d6 01 00000001")
    assert [len(frame) for frame in frames[1:]] == [T + 1, T + 1]


def test_more_blobs_than_frames_stay_in_the_body() -> None:
    value = [bytes([n]) * (T + 1) for n in range(70)]
    frames = wire.encode_body(value)
    assert len(frames) == wire.MAX_FRAMES - 2
    assert wire.decode_body(frames) == value


def test_a_mutable_buffer_is_sent_as_it_was() -> None:
    buffer = bytearray(b"x" * (T + 1))
    frames = wire.encode_body({"deep": [buffer]})
    buffer[0] = 0
    assert wire.decode_body(frames)["deep"][0][0] == ord("x")


@pytest.mark.parametrize("value", [{1, 2}, object(), 2**70, {"a": {"b": 1j}}, "\ud800", [lambda: 1]])
def test_what_cannot_be_carried_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(Invalid, match="cannot be sent"):
        wire.encode_body(value)


def test_a_message_beyond_the_limit_is_refused_with_its_size() -> None:
    half = b"x" * (wire.MAX_MESSAGE_BYTES // 2)
    with pytest.raises(Invalid, match=r"67108871 bytes.*holds 67108864"):
        wire.encode_body([half, half[:-6]])
    with pytest.raises(Invalid, match="a message holds"):
        wire.encode_body("t" * wire.MAX_MESSAGE_BYTES)


def test_an_event_has_a_topic_and_at_most_64_kib() -> None:
    assert wire.decode_body([wire.encode_event("turn.started", {"a": 1})]) == {"a": 1}
    for topic in ("", "Turn", "a..b", "1a", "a b", "ä", "a" * 161, "turn.*"):
        with pytest.raises(Invalid, match="not a topic"):
            wire.encode_event(topic, 1)
    with pytest.raises(Invalid, match="an event of 65546 bytes"):
        wire.encode_event("turn.started", {"t": "x" * (T + 2)})
    with pytest.raises(Invalid):
        wire.encode_event("turn.started", b"x" * (T + 2))


def test_a_header_comes_back_as_it_was_and_leaves_out_what_is_empty() -> None:
    header = wire.encode_header("call", call_id=7, method="memory.recall", deadline_ms=5, trace="t", number=3)
    assert wire.decode_header(header) == {"v": 1, "k": "call", "i": 7, "m": "memory.recall", "d": 5, "t": "t", "n": 3}
    assert wire.decode_header(wire.encode_header("bye")) == {"v": 1, "k": "bye"}


BAD_HEADERS: list[Any] = [
    None,
    [],
    "text",
    {},
    {"k": "call"},
    {"v": 1},
    {"v": 2, "k": "call"},
    {"v": True, "k": "call"},
    {"v": 1.0, "k": "call"},
    {"v": [1], "k": "call"},
    {"v": {}, "k": "call"},
    {"v": 1, "k": "shout"},
    {"v": 1, "k": ["call"]},
    {"v": 1, "k": {"call": 1}},
    {"v": 1, "k": b"call"},
    {"v": 1, "k": "call", "i": -1},
    {"v": 1, "k": "call", "i": 2**63},
    {"v": 1, "k": "call", "i": True},
    {"v": 1, "k": "call", "i": "1"},
    {"v": 1, "k": "call", "d": 1.5},
    {"v": 1, "k": "call", "n": None},
    {"v": 1, "k": "call", "m": b"memory.recall"},
    {"v": 1, "k": "call", "m": "m" * 161},
    {"v": 1, "k": "call", "t": ["x"]},
    {"v": 1, "k": "call", "t": "t" * 65},
]


@pytest.mark.parametrize("header", BAD_HEADERS, ids=repr)
def test_a_header_with_a_wrong_field_is_malformed(header: Any) -> None:
    with pytest.raises(wire.Malformed):
        wire.decode_header(msgpack.packb(header))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\xa5ab",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 4000,
        msgpack.packb({"v": 1, "k": "bye"}) + b"\x00",
        b"x" * 5000,
        b"\xd4\x05\x00",
        bytes.fromhex("82a17601a16bd6ff00000000"),
        bytes.fromhex("8181a176010101"),
    ],
    ids=lambda frame: frame[:8].hex(),
)
def test_a_header_that_is_no_messagepack_is_malformed(frame: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.decode_header(frame)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_malformed(frame: bytes) -> None:
    try:
        header = wire.decode_header(frame)
    except wire.Malformed:
        return
    assert header["k"] in wire.KINDS


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=4))
def test_any_frames_are_a_body_or_malformed(frames: list[bytes]) -> None:
    try:
        wire.decode_body(frames)
    except wire.Malformed:
        return


@pytest.mark.parametrize(
    "body",
    [
        bytes.fromhex("d60100000001"),  # the second blob, of one
        bytes.fromhex("d40100"),  # an index of one byte
        bytes.fromhex("d60200000000"),  # another extension type
        b"\xdd\xff\xff\xff\xff" * 200,  # lists that say they hold four billion items
        b"\x91" * 5000,
    ],
    ids=lambda body: body[:6].hex(),
)
def test_a_body_that_refers_to_nothing_or_has_no_end_is_malformed(body: bytes) -> None:
    with pytest.raises(wire.Malformed):
        wire.decode_body([body, b"blob"])


def test_what_a_reader_is_willing_to_build_can_be_limited() -> None:
    assert wire.decode_body([msgpack.packb([1] * 64)], max_items=64) == [1] * 64
    with pytest.raises(wire.Malformed):
        wire.decode_body([msgpack.packb([1] * 65)], max_items=64)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("memory.recall", True),
        ("a-b.c_d", True),
        ("a.b.c", True),
        ("memory", False),
        ("Memory.recall", False),
        (".recall", False),
        ("memory.", False),
        ("memory.re-call", False),
        ("memory.recall\n", False),
        ("m." + "a" * 64 + ".b" * 50, False),
        ("a.b" + ".c" * 79, False),
    ],
)
def test_method_names(name: str, good: bool) -> None:
    assert wire.is_method(name) is good
