"""The wire format: ``[header, body, blob…]``, MessagePack, as ``docs/protocol.md`` defines it.

Headers are small maps that the hub reads; bodies are opaque to it. This module knows neither sockets nor peers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
BLOB_THRESHOLD_BYTES: Final = 64 * 1024
"""``bytes`` longer than this leave the body and travel as frames of their own."""
MAX_DEADLINE_MS: Final = 24 * 3600 * 1000
DEFAULT_DEADLINE_S: Final = 60.0
DEFAULT_WINDOW: Final = 64
"""Items of a stream that may be under way before the receiver has granted more."""
MAX_WINDOW: Final = 4096

_BLOB: Final = 1
"""The MessagePack extension type of a blob: its payload is the index of the blob frame, an unsigned integer."""
_METHOD: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}(\.[a-z][a-z0-9_]{0,63})+")
_INT_FIELDS: Final = ("i", "d", "n")

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
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"header is not MessagePack: {type(error).__name__}") from error
    if not isinstance(header, dict):
        raise Malformed("header is not a map")
    version = header.get("v")
    if version not in ACCEPTED or isinstance(version, bool):
        raise Malformed(f"protocol version {version!r} is not one of {sorted(ACCEPTED)}")
    if header.get("k") not in KINDS:
        raise Malformed(f"unknown kind {header.get('k')!r}"[:120])
    for name in _INT_FIELDS:
        value = header.get(name, 0)
        if type(value) is not int or not 0 <= value < 2**63:
            raise Malformed(f"header field {name} is not an unsigned integer")
    for name, limit in (("m", 160), ("t", 64)):
        value = header.get(name, "")
        if not isinstance(value, str) or len(value) > limit:
            raise Malformed(f"header field {name} is not a text of at most {limit} characters")
    return header


def is_method(name: str) -> bool:
    """Tell whether a text is a method name: ``<peer>.<verb>``, lower case."""
    return _METHOD.fullmatch(name) is not None


def encode_body(value: Any) -> list[bytes]:
    """Encode a value as body frame and blob frames.

    :raises Invalid: when the value holds something that MessagePack cannot carry
    """
    try:
        body: bytes = msgpack.packb(value)
        if len(body) <= BLOB_THRESHOLD_BYTES:
            return [body]
        blobs: list[bytes] = []
        lean = _take_out_blobs(value, blobs)
        return [msgpack.packb(lean), *blobs] if blobs else [body]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"the body cannot be sent: {error}", hint="send None, bool, int, float, str, bytes, list and dict only"
        ) from error


def decode_body(frames: Sequence[Buffer]) -> Any:
    """Decode body and blob frames; blobs come back as ``bytes``-like views where they stood.

    :raises Malformed: when the body is not MessagePack or refers to a blob that is not there
    """
    if not frames:
        return None
    blobs = frames[1:]

    def extension(code: int, data: bytes) -> Any:
        index = int.from_bytes(data, "big")
        if code != _BLOB or index >= len(blobs):
            raise Malformed("the body refers to a blob that was not sent")
        return blobs[index]

    try:
        return msgpack.unpackb(frames[0], strict_map_key=False, ext_hook=extension)
    except Malformed:
        raise
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise Malformed(f"body is not MessagePack: {type(error).__name__}") from error


def _take_out_blobs(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        if len(value) <= BLOB_THRESHOLD_BYTES or len(blobs) >= MAX_FRAMES - 3:
            return value
        blobs.append(bytes(value) if isinstance(value, memoryview) else value)  # type: ignore[arg-type]
        return msgpack.ExtType(_BLOB, (len(blobs) - 1).to_bytes(4, "big"))
    if isinstance(value, dict):
        return {key: _take_out_blobs(item, blobs) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out_blobs(item, blobs) for item in value]
    return value
