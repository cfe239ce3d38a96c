"""The wire format: ``[header, body, blob…]``, MessagePack, as ``docs/protocol.md`` defines it.

Headers are small maps that the hub reads; bodies are opaque to it. This module knows neither sockets nor peers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgpack

from homeagent_sdk.errors import Invalid

PROTOCOL: Final = 1
"""The protocol version that this sdk speaks."""
ACCEPTED: Final = frozenset({PROTOCOL})
"""The versions that it understands: N and, once there is one, N-1."""

HELLO, CHALLENGE, WELCOME, BYE = "hello", "challenge", "welcome", "bye"
CALL, REPLY, ERROR, NEXT, END, CREDIT = "call", "reply", "error", "next", "end", "credit"
CAST, CANCEL, PING, PONG, EVENT = "cast", "cancel", "ping", "pong", "event"
KINDS: Final = frozenset(
    {HELLO, CHALLENGE, WELCOME, BYE, CALL, REPLY, ERROR, NEXT, END, CREDIT, CAST, CANCEL, PING, PONG, EVENT}
)

MAX_HEADER_BYTES: Final = 4096
MAX_FRAMES: Final = 64
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""All frames of a message together, its header included."""
MAX_METHOD_CHARACTERS: Final = 160
"""Of a method, and of a topic."""
MAX_TRACE_CHARACTERS: Final = 64
BLOB_THRESHOLD_BYTES: Final = 64 * 1024
"""``bytes`` longer than this leave the body and travel as frames of their own."""
MAX_EVENT_BYTES: Final = 64 * 1024
"""The packed payload of an event."""
MAX_DEADLINE_MS: Final = 24 * 3600 * 1000
DEFAULT_DEADLINE_S: Final = 60.0
DEFAULT_WINDOW: Final = 64
"""Items of a stream that may be under way before the receiver has granted more."""
MAX_WINDOW: Final = 4096

_BLOB: Final = 1
"""The MessagePack extension type of a blob: its payload is the index of the blob frame, 4 bytes, big-endian."""
_METHOD: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}(\.[a-z][a-z0-9_]{0,63})+")
_TOPIC: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}(\.[a-z][a-z0-9_]{0,63})*")
_INT_FIELDS: Final = ("i", "d", "n")
_TEXT_FIELDS: Final = (("m", MAX_METHOD_CHARACTERS), ("t", MAX_TRACE_CHARACTERS))

Header = dict[str, Any]
Buffer = bytes | bytearray | memoryview


class Malformed(ValueError):
    """Raised when frames are not a message of the protocol. The sender is at fault."""


def encode_header(
    kind: str,
    *,
    call_id: int = 0,
    method: str = "",
    deadline_ms: int = 0,
    trace: str = "",
    number: int = 0,
    origin: dict[str, Any] | None = None,
) -> bytes:
    """Encode a header; fields at their default are left out."""
    header: Header = {"v": PROTOCOL, "k": kind}
    if call_id:
        header["i"] = call_id
    if method:
        header["m"] = method
    if deadline_ms:
        header["d"] = deadline_ms
    if trace:
        header["t"] = trace
    if number:
        header["n"] = number
    if origin is not None:
        header["o"] = origin
    return msgpack.packb(header)  # type: ignore[no-any-return]


def decode_header(frame: Buffer) -> Header:
    """Decode and check a header, so that whoever reads it may rely on the types of its fields.

    :raises Malformed: naming the field at fault
    """
    if len(frame) > MAX_HEADER_BYTES:
        raise Malformed(f"header of {len(frame)} bytes; the limit is {MAX_HEADER_BYTES}")
    try:
        header = msgpack.unpackb(frame)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError) as error:
        raise Malformed(f"header is not MessagePack: {type(error).__name__}") from error
    if not isinstance(header, dict):
        raise Malformed("header is not a map")
    version, kind = header.get("v"), header.get("k")
    if type(version) is not int or version not in ACCEPTED:
        raise Malformed(f"protocol version {version!r} is not one of {sorted(ACCEPTED)}"[:120])
    if type(kind) is not str or kind not in KINDS:
        raise Malformed(f"unknown kind {kind!r}"[:120])
    for name in _INT_FIELDS:
        value = header.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**63:
            raise Malformed(f"header field {name} is not an unsigned integer below 2^63")
    for name, limit in _TEXT_FIELDS:
        value = header.get(name, "")
        if type(value) is not str or len(value) > limit:
            raise Malformed(f"header field {name} is not a text of at most {limit} characters")
    return header


def is_method(name: str) -> bool:
    """Tell whether a text is a method name: ``<peer>.<verb>``, lower case."""
    return len(name) <= MAX_METHOD_CHARACTERS and _METHOD.fullmatch(name) is not None


def is_topic(name: str) -> bool:
    """Tell whether a text can be the topic of an event: words as in a method name, but one is enough."""
    return len(name) <= MAX_METHOD_CHARACTERS and _TOPIC.fullmatch(name) is not None


def size_of(frames: Iterable[Any]) -> int:
    """Return the bytes of some frames together."""
    return sum(map(len, frames))


def encode_body(value: Any) -> list[bytes]:
    """Encode a value as body frame and blob frames.

    :raises Invalid: when the value holds something that MessagePack cannot carry, or is too large for a message
    """
    try:
        blobs: list[bytes] = []
        if _holds_blob(value):  # known at a glance, so that it is not packed twice
            value = _take_out_blobs(value, blobs)
        body: bytes = msgpack.packb(value)
        if not blobs and len(body) <= BLOB_THRESHOLD_BYTES:
            return [body]
        if not blobs:
            lean = _take_out_blobs(value, blobs)
            body = msgpack.packb(lean) if blobs else body
        frames = [body, *blobs]
    except (TypeError, ValueError, OverflowError, RecursionError, BufferError) as error:
        raise Invalid(
            f"the body cannot be sent: {error}", hint="send None, bool, int, float, str, bytes, list and dict only"
        ) from error
    size = size_of(frames)
    if size > MAX_MESSAGE_BYTES - MAX_HEADER_BYTES:
        raise Invalid(
            f"a body of {size} bytes cannot be sent; a message holds {MAX_MESSAGE_BYTES}",
            hint="send it in parts, or a reference to it",
        )
    return frames


def encode_event(topic: str, payload: Any) -> bytes:
    """Encode the payload of an event.

    :raises Invalid: the topic is none, or the payload is too large for the ring
    """
    if not is_topic(topic):
        raise Invalid(f"{topic[:80]!r} is not a topic", field="topic", hint="topics look like turn.started")
    frames = encode_body(payload)
    if len(frames) > 1 or len(frames[0]) > MAX_EVENT_BYTES:
        raise Invalid(
            f"an event of {size_of(frames)} bytes on {topic}", hint="events hold at most 64 KiB; send a reference"
        )
    return frames[0]


def decode_body(frames: Sequence[Buffer], *, max_items: int | None = None) -> Any:
    """Decode body and blob frames; blobs come back where they stood.

    :param max_items: what one list or map may hold; by default as many as the body has bytes
    :raises Malformed: when the body is not MessagePack or refers to a blob that is not there
    """
    if not frames:
        return None
    blobs = frames[1:]

    def extension(code: int, data: bytes) -> Any:
        index = int.from_bytes(data, "big") if len(data) == 4 else len(blobs)
        if code != _BLOB or index >= len(blobs):
            raise Malformed("the body refers to a blob that was not sent")
        return blobs[index]

    limit = -1 if max_items is None else max_items
    try:
        return msgpack.unpackb(
            frames[0], strict_map_key=False, ext_hook=extension, max_array_len=limit, max_map_len=limit
        )
    except Malformed:
        raise
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, OverflowError, MemoryError) as error:
        raise Malformed(f"body is not MessagePack: {type(error).__name__}") from error


def _holds_blob(value: Any) -> bool:
    items = value.values() if type(value) is dict else value if type(value) is list else (value,)
    return any(type(item) is bytes and len(item) > BLOB_THRESHOLD_BYTES for item in items)


def _take_out_blobs(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        size = value.nbytes if isinstance(value, memoryview) else len(value)
        if size <= BLOB_THRESHOLD_BYTES or len(blobs) >= MAX_FRAMES - 3:
            return value
        blobs.append(bytes(value))  # a mutable buffer may change while the message waits
        return msgpack.ExtType(_BLOB, (len(blobs) - 1).to_bytes(4, "big"))
    if isinstance(value, dict):
        return {key: _take_out_blobs(item, blobs) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out_blobs(item, blobs) for item in value]
    return value
