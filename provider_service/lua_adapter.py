"""One adapter script, loaded into a Lua state of its own; used inside the worker process only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lupa.lua54 import LuaError, LuaMemoryError, LuaRuntime, lua_type

from provider_service.lua_values import LuaValues, NotJson, text_of

T = TypeVar("T")
MAX_LOG_LINES = 20
BASE_ADAPTER = "openai"
"""Whatever an adapter does not define is taken from this one."""

FUNCTIONS = (
    b"endpoint",
    b"headers",
    b"build_headers",
    b"transform_request",
    b"transform_response",
    b"transform_stream_chunk",
    b"transform_error",
    b"opaque",
    b"plain_messages",
)
_SANDBOX = Path(__file__).with_name("sandbox.lua")


class AdapterFailed(Exception):
    """Raised when a script cannot be loaded, fails, or returns nonsense; the text is fit for a person.

    ``is_spent``: it used up its time or memory, and its Lua state must not be used again.
    """

    def __init__(self, message: str, is_spent: bool = False) -> None:
        super().__init__(message)
        self.is_spent = is_spent


class LuaAdapter:
    """An adapter and its Lua state.

    :param name: the adapter's name, ``<name>.lua`` in messages
    :param text: the script
    :param base_text: the script of :data:`BASE_ADAPTER`, for what the first does not define; None for the base itself
    :param memory_bytes: the most its Lua state may allocate
    :param limit_s: processor time of one call
    :raises AdapterFailed: the script does not load
    """

    def __init__(self, name: str, text: str, base_text: str | None, memory_bytes: int, limit_s: float) -> None:
        self.name = name
        self.log: list[tuple[str, str]] = []
        self._limit_s = limit_s
        lua = LuaRuntime(
            encoding=None,
            source_encoding="utf-8",
            unpack_returned_tuples=False,
            register_eval=False,
            register_builtins=False,
            attribute_filter=_refuse_attributes,
            max_memory=memory_bytes,
        )
        self._values = LuaValues(lua)
        sandbox = lua.compile(_SANDBOX.read_text(encoding="utf-8"))(self._decode, self._encode, self._write_log)
        lua.execute(b"python = nil")
        self._values.attach(sandbox)
        self._start_clock = sandbox[b"start_clock"]
        self._stop_clock = sandbox[b"stop_clock"]
        self._functions = self._load(sandbox, name, text)
        if base_text is not None:
            self._functions = {**self._load(sandbox, BASE_ADAPTER, base_text), **self._functions}
        self._opaque: frozenset[str] = frozenset(self.value("opaque") or ())
        self.takes_plain_messages_raw = self.value("plain_messages") == "raw"
        """Whether messages of nothing but role and text may come as raw JSON."""

    def _load(self, sandbox: Any, name: str, text: str) -> dict[bytes, Any]:
        def run() -> dict[bytes, Any]:
            table = sandbox[b"load_adapter"](text.encode(), f"{name}.lua".encode())
            found = {key: sandbox[b"field"](table, key) for key in FUNCTIONS}
            return {key: value for key, value in found.items() if value is not None}

        return self._guard(run)

    def call(self, function: str, *arguments: Any, raw_keys: frozenset[str] | None = None) -> bytes:
        """Call a function of the adapter with JSON values and return its value as JSON.

        :param raw_keys: what the function gets as raw JSON; default: what the adapter declared as ``opaque``
        :raises AdapterFailed: there is no such function, or it failed
        """
        found = self._find(function)
        return self._guard(lambda: self._values.to_json(self._run(found, self._to_lua(arguments, raw_keys))))

    def stream(self, events: list[Any], state: dict[str, Any]) -> tuple[bytes, bytes]:
        """Pass events through ``transform_stream_chunk(event, state)``.

        :returns: a JSON list of the results, and the state after them, empty if there is none
        :raises AdapterFailed: there is no such function, or it failed
        """
        function = self._find("transform_stream_chunk")

        def run() -> tuple[bytes, bytes]:
            kept = self._values.to_lua(state)
            results = [self._run(function, [*self._to_lua((event,), None), kept]) for event in events]
            encoded, after = self._values.list_to_json(results), self._values.to_json(kept)
            return encoded, b"" if after == b"{}" else after

        return self._guard(run)

    def value(self, name: str, *arguments: Any) -> Any:
        """Return a field that may be given as a value or as a function of ``arguments``; None if it is missing."""
        found = self._functions.get(name.encode())
        if lua_type(found) == "function":
            return self._guard(lambda: self._values.to_python(self._run(found, self._to_lua(arguments, frozenset()))))
        return self._guard(lambda: self._values.to_python(found))

    def _find(self, function: str) -> Any:
        found = self._functions.get(function.encode())
        if found is None:
            raise AdapterFailed(f"{self.name}.lua has no function {function}")
        return found

    def _to_lua(self, arguments: tuple[Any, ...], raw_keys: frozenset[str] | None) -> list[Any]:
        self._values.raw_keys = self._opaque if raw_keys is None else raw_keys
        return [self._values.to_lua(value) for value in arguments]

    def _run(self, function: Any, arguments: list[Any]) -> Any:
        result = function(*arguments)
        return (result[0] if result else None) if isinstance(result, tuple) else result

    def _guard(self, run: Callable[[], T]) -> T:
        """Run what happens in the Lua state within its limit of time, and translate what goes wrong."""
        self._start_clock(self._limit_s)
        is_late = False
        try:
            try:
                return run()
            finally:
                is_late = self._has_run_late()
        except LuaMemoryError as error:
            raise AdapterFailed(f"{self.name}.lua used up its memory", is_spent=True) from error
        except NotJson as error:
            raise AdapterFailed(f"{self.name}.lua returned {error}") from error
        except (LuaError, TypeError) as error:
            if is_late:
                raise AdapterFailed(f"{self.name}.lua used up its time", is_spent=True) from error
            raise AdapterFailed(_first_line(error) or f"{self.name}.lua failed without a message") from error

    def _has_run_late(self) -> bool:
        try:
            return bool(self._stop_clock())
        except LuaError:
            # Once late, every instruction of this state fails.
            return True

    # What Lua calls. An exception that left one of these would hand the script a Python object.

    def _decode(self, text: bytes) -> Any:
        try:
            self._values.raw_keys = frozenset()
            return self._values.to_lua(json.loads(text_of(text)))
        except (ValueError, RecursionError, LuaError):
            return None

    def _encode(self, value: Any) -> bytes | None:
        try:
            return self._values.to_json(value)
        except (ValueError, RecursionError, LuaError, NotJson):
            return None

    def _write_log(self, level: bytes, message: bytes) -> None:
        if len(self.log) < MAX_LOG_LINES:
            self.log.append((text_of(level), text_of(message)))


def _refuse_attributes(target: object, name: object, is_setting: bool) -> str:
    raise AttributeError("adapters have no access to Python")


def _first_line(error: Exception) -> str:
    raw = error.args[0] if error.args else ""
    text = text_of(raw) if isinstance(raw, bytes) else str(raw)
    return text.partition("\nstack traceback:")[0][:300]
