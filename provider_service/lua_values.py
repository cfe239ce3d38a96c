"""JSON as Lua sees it: tables, with ``null``, empty lists and integers beyond 64 bits kept as they are.

What an adapter only passes on (the schema of a tool, a signature) crosses as *raw JSON*: one Lua value that stands for
a text, so that it comes out byte for byte, in its own order, and costs nothing. Python strings are Lua strings of
UTF-8; a lone half of a surrogate pair, which a stream can cut between two chunks, passes both ways.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100
MAX_VALUES = 2_000_000
_INT64 = range(-(2**63), 2**63)


class NotJson(Exception):
    """Raised when a script returned something that JSON cannot say; the text tells what."""


class Raw(bytes):
    """JSON text that is passed on unread."""


class LuaValues:
    """Converts between Python's JSON values and those of one Lua state.

    :param lua: the :class:`lupa.lua54.LuaRuntime`, created with ``encoding=None``
    """

    def __init__(self, lua: Any) -> None:
        self.raw_keys: frozenset[str] = frozenset()
        """Values under these keys become raw JSON on their way into Lua."""
        self._table_from = lua.table_from
        self._count = 0
        self._raws: list[bytes] = []
        nonce = os.urandom(8).hex()
        self._placeholder = f"\0{nonce}:"
        self._placeholders = re.compile(rf'"\\u0000{nonce}:(\d+)"'.encode())

    def attach(self, sandbox: Any) -> None:
        """Take over the markers of the sandbox; called once, before any conversion."""
        self._null = sandbox[b"null"]
        self._mark_list = sandbox[b"mark_list"]
        self._new_big_integer = sandbox[b"new_big_integer"]
        self._new_raw = sandbox[b"new_raw"]
        self._inspect = sandbox[b"inspect"]

    def to_lua(self, value: Any) -> Any:
        """Return ``value`` (what :func:`json.loads` makes, or :class:`Raw`) as Lua gets it."""
        if isinstance(value, str):
            return value.encode("utf-8", "surrogatepass")
        if value is None:
            return self._null
        if isinstance(value, dict):
            return self._table_from(
                {
                    key.encode("utf-8", "surrogatepass"): self._new_raw(encode(inner))
                    if key in self.raw_keys and isinstance(inner, dict | list)
                    else self.to_lua(inner)
                    for key, inner in value.items()
                }
            )
        if isinstance(value, list):
            return self._mark_list(self._table_from([self.to_lua(inner) for inner in value]))
        if isinstance(value, Raw):
            return self._new_raw(bytes(value))
        if isinstance(value, int) and not isinstance(value, bool) and value not in _INT64:
            return self._new_big_integer(str(value).encode())
        return value

    def to_json(self, value: Any) -> bytes:
        """Return a Lua value as JSON with sorted keys, so that equal requests are equal bytes; nil becomes null.

        :raises NotJson: a function, a mixed table, a number without a value, or too much of anything
        """
        return self._encode(self.to_python(value))

    def list_to_json(self, values: list[Any]) -> bytes:
        """Return several Lua values as one JSON list; see :meth:`to_json`."""
        self._start()
        return self._encode([self._to_python(value, 0) for value in values])

    def _encode(self, value: Any) -> bytes:
        encoded = encode(value, sort_keys=True)
        if not self._raws:
            return encoded
        raws, self._raws = self._raws, []
        return self._placeholders.sub(lambda match: raws[int(match.group(1))], encoded)

    def _start(self) -> None:
        self._count = 0
        self._raws = []

    def to_python(self, value: Any) -> Any:
        """Return a Lua value as :func:`json.dumps` takes it; raw JSON stays a placeholder until :meth:`to_json`.

        :raises NotJson: as :meth:`to_json`
        """
        self._start()
        return self._to_python(value, 0)

    def _to_python(self, value: Any, depth: int) -> Any:
        if isinstance(value, bytes):
            return text_of(value)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise NotJson("a number that is infinite or not a number")
            return value
        return self._table_to_python(value, depth)

    def _table_to_python(self, table: Any, depth: int) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            raise NotJson("a table that is nested too deeply, contains itself, or is too large")
        kind, size = self._inspect(table)
        if kind == b"o":
            return {self._key(key): self._to_python(inner, depth + 1) for key, inner in table.items()}
        if kind == b"l":
            self._count += int(size)
            return [self._to_python(table[index], depth + 1) for index in range(1, size + 1)]
        if kind == b"n":
            return None
        if kind == b"r":
            self._raws.append(size)
            return f"{self._placeholder}{len(self._raws) - 1}"
        if kind == b"i":
            return int(size)
        if kind == b"x":
            raise NotJson("a table that has both list entries and names")
        raise NotJson("a function, a coroutine or another value that JSON does not have")

    @staticmethod
    def _key(key: Any) -> str:
        if isinstance(key, bytes):
            return text_of(key)
        if isinstance(key, int) and not isinstance(key, bool):
            return str(key)
        raise NotJson("a table with a key that is neither a text nor a whole number")


def text_of(raw: bytes) -> str:
    """Decode a Lua string; bytes that are no UTF-8 become replacement characters."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def _encoder(*, ascii_only: bool, sort_keys: bool) -> Callable[[Any], str]:
    compact = (",", ":")
    return json.JSONEncoder(ensure_ascii=ascii_only, separators=compact, allow_nan=False, sort_keys=sort_keys).encode


_ENCODERS = {keys: _encoder(ascii_only=False, sort_keys=keys) for keys in (False, True)}
_ASCII_ENCODERS = {keys: _encoder(ascii_only=True, sort_keys=keys) for keys in (False, True)}


def encode(value: Any, *, sort_keys: bool = False) -> bytes:
    """Return compact JSON in UTF-8; text with a lone surrogate is escaped, so that the result is valid."""
    try:
        return _ENCODERS[sort_keys](value).encode()
    except UnicodeEncodeError:
        return _ASCII_ENCODERS[sort_keys](value).encode()
