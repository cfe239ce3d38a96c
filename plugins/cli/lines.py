"""Lines of JSON over a stream, each of a limited length."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid

LINE_LIMIT_BYTES = 1024 * 1024

_CHUNK_BYTES = 64 * 1024


async def read_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes | Invalid]:
    """Yield the lines until the other side ends; for a line over the limit, one error, and then the next line."""
    rest = bytearray()
    is_skipping = False
    while chunk := await reader.read(_CHUNK_BYTES):
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            if not is_skipping and len(rest) + len(end) > LINE_LIMIT_BYTES:
                yield _too_long()
            elif not is_skipping:
                yield bytes(rest + end)
            rest.clear()
            is_skipping = False
        if is_skipping:
            continue
        rest += tail
        if len(rest) > LINE_LIMIT_BYTES:
            yield _too_long()
            rest.clear()
            is_skipping = True
    if rest:
        yield bytes(rest)


def parse_line(line: bytes) -> dict[str, Any]:
    """Return the object on a line.

    :raises Invalid: it is no JSON, or no object
    """
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Invalid(text("cli.bad_json", reason=str(error)[:200]), hint=text("cli.bad_json_hint")) from error
    if not isinstance(parsed, dict):
        raise Invalid(text("cli.no_object"), hint=text("cli.bad_json_hint"))
    return parsed


def format_line(item: dict[str, Any]) -> bytes:
    """Return an object as a line; what is not valid Unicode in it is replaced."""
    return json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _too_long() -> Invalid:
    return Invalid(text("cli.line_too_long", limit=f"{LINE_LIMIT_BYTES // (1024 * 1024)} MiB"))
