"""The worker process: runs adapters for the provider service, owns no socket but the one to it, and no secret.

``python -m provider_service.lua_worker FD BUNDLED_DIR USER_DIR PARENT_PID``. A frame is a length (4 bytes, LE) and
msgpack. A request is ``{op, adapter, version?, ...}``; the answer ``{ok: true, version, log, ...}`` or
``{ok: false, message, upstream, log}``. JSON inside them is UTF-8 text, so that any integer passes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import msgpack

from provider_service.lua_adapter import BASE_ADAPTER, AdapterFailed, LuaAdapter
from provider_service.lua_values import Raw, encode

LUA_MEMORY_BYTES = 192 * 1024 * 1024
ADDRESS_SPACE_BYTES = 1024 * 1024 * 1024
CALL_LIMIT_S = 1.0
"""Processor time of one call into Lua."""

MAX_SCRIPT_BYTES = 1024 * 1024
MAX_LOADED = 8
_PR_SET_PDEATHSIG = 1
_UNREAD_IN_REQUESTS = frozenset({"parameters"})
_PLAIN_MESSAGE = {"role", "content"}

Version = str


class Adapters:
    """The adapters of the two folders; a file that was edited is loaded anew at its next use."""

    def __init__(self, bundled: Path, user: Path, limit_s: float = CALL_LIMIT_S) -> None:
        self._folders = (user, bundled)
        self._limit_s = limit_s
        self._loaded: OrderedDict[tuple[str, Version], LuaAdapter] = OrderedDict()

    def get(self, name: str, version: Version | None = None) -> tuple[LuaAdapter, Version]:
        """Return an adapter and its version: the one asked for if it is still here, else the newest.

        :raises AdapterFailed: there is no such file, or it does not load
        """
        if version is not None and (name, version) in self._loaded:
            return self._loaded[name, version], version
        newest, paths = self._find(name)
        adapter = self._loaded.get((name, newest))
        if adapter is None:
            texts = [_read(path) for path in paths]
            base = texts[1] if len(texts) > 1 else None
            adapter = LuaAdapter(name, texts[0], base, LUA_MEMORY_BYTES, self._limit_s)
            self._loaded[name, newest] = adapter
            if len(self._loaded) > MAX_LOADED:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end((name, newest))
        return adapter, newest

    def forget(self, adapter: LuaAdapter) -> None:
        """Drop an adapter whose Lua state is spent."""
        for key in [key for key, loaded in self._loaded.items() if loaded is adapter]:
            del self._loaded[key]

    def _find(self, name: str) -> tuple[Version, list[Path]]:
        """Return the version and path of an adapter, and the path of the one that fills its gaps."""
        found = [self._first(name, self._folders)]
        if name != BASE_ADAPTER:
            found.append(self._first(BASE_ADAPTER, self._folders))
        elif found[0][1].parent != self._folders[-1]:
            found.append(self._first(BASE_ADAPTER, self._folders[-1:]))
        return "-".join(version for version, _ in found), [path for _, path in found]

    def _first(self, name: str, folders: tuple[Path, ...]) -> tuple[Version, Path]:
        for folder in folders:
            path = folder / f"{name}.lua"
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise AdapterFailed(f"{path} cannot be read: {error.strerror}") from error
            return f"{found.st_ino}.{found.st_mtime_ns}.{found.st_size}", path
        raise AdapterFailed(f"there is no adapter {name}.lua in {' or '.join(map(str, folders))}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise AdapterFailed(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_SCRIPT_BYTES:
        raise AdapterFailed(f"{path} is larger than {MAX_SCRIPT_BYTES} bytes")
    return raw.decode("utf-8", "replace")


# The operations -----------------------------------------------------------------------------------------------------


class NotJsonFromUpstream(Exception):
    """Raised when what the model's API sent is no JSON: its fault, not the adapter's."""


def _request(adapter: LuaAdapter, frame: dict[str, Any]) -> dict[str, Any]:
    request, meta = json.loads(frame["request"]), frame["meta"]
    for message in request["messages"]:
        if opaque := message.get("opaque"):
            message["opaque"] = {name: Raw(encode(value)) for name, value in opaque.items()}
    if adapter.takes_plain_messages_raw:
        request["messages"] = [_plain_as_raw(message) for message in request["messages"]]
    body = adapter.call("transform_request", request, meta, raw_keys=_UNREAD_IN_REQUESTS)
    if body.startswith(b'"'):
        body = json.loads(body).encode()
    elif not body.startswith(b"{"):
        raise AdapterFailed(f"{adapter.name}.lua: transform_request must return a table or a JSON text")
    headers = adapter.value("build_headers", meta) or adapter.value("headers", meta) or {}
    outline = {key: value for key, value in request.items() if key not in ("messages", "tools")}
    endpoint = adapter.value("endpoint", outline, meta)
    if not isinstance(headers, dict) or not isinstance(endpoint, str):
        raise AdapterFailed(f"{adapter.name}.lua: headers must be a table and endpoint a text")
    return {"body": body, "headers": {name: str(value) for name, value in headers.items()}, "endpoint": endpoint}


def _plain_as_raw(message: dict[str, Any]) -> Any:
    """Return a message of nothing but role and text as raw JSON: most of a long prompt need not become tables."""
    if message.keys() == _PLAIN_MESSAGE and isinstance(message["content"], str):
        return Raw(encode(message, sort_keys=True))
    return message


def _response(adapter: LuaAdapter, frame: dict[str, Any]) -> dict[str, Any]:
    return {"result": adapter.call("transform_response", _parse(frame["body"]))}


def _chunks(adapter: LuaAdapter, frame: dict[str, Any]) -> dict[str, Any]:
    state = json.loads(frame["state"]) if frame.get("state") else {}
    result, after = adapter.stream([_parse(event) for event in frame["events"]], state)
    return {"result": result, "state": after}


def _error(adapter: LuaAdapter, frame: dict[str, Any]) -> dict[str, Any]:
    try:
        body = _parse(frame["body"])
    except NotJsonFromUpstream:
        body = frame["body"].decode("utf-8", "replace")
    return {"result": adapter.call("transform_error", frame["status"], body)}


def _load(adapter: LuaAdapter, frame: dict[str, Any]) -> dict[str, Any]:
    return {}


OPERATIONS = {"request": _request, "response": _response, "chunks": _chunks, "error": _error, "load": _load}


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise NotJsonFromUpstream("the answer is not JSON") from error


def perform(adapters: Adapters, frame: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request frame and return the answer frame."""
    adapter: LuaAdapter | None = None
    version: Version | None = None
    try:
        adapter, version = adapters.get(frame["adapter"], frame.get("version"))
        answer = {"ok": True, **OPERATIONS[frame["op"]](adapter, frame)}
    except AdapterFailed as error:
        if error.is_spent and adapter is not None:
            adapters.forget(adapter)
        answer = {"ok": False, "message": str(error), "upstream": False}
    except NotJsonFromUpstream as error:
        answer = {"ok": False, "message": str(error), "upstream": True}
    except (ValueError, RecursionError) as error:
        answer = {"ok": False, "message": f"{frame['adapter']}.lua: {error}", "upstream": False}
    except MemoryError:
        if adapter is not None:
            adapters.forget(adapter)
        answer = {"ok": False, "message": f"{frame['adapter']}.lua: out of memory", "upstream": False}
    if adapter is not None:
        answer["log"], adapter.log = adapter.log, []
    answer["version"] = version
    return answer


def serve(connection: socket.socket, adapters: Adapters) -> None:
    """Say with an empty frame that this worker is ready, then answer requests until the other side closes."""
    with connection, connection.makefile("rb") as reader:
        connection.sendall(struct.pack("<I", 0))
        while len(head := reader.read(4)) == 4:
            (length,) = struct.unpack("<I", head)
            frame = msgpack.unpackb(reader.read(length))
            answer = msgpack.packb(perform(adapters, frame))
            connection.sendall(struct.pack("<I", len(answer)) + answer)


def _die_with(parent_pid: int) -> None:
    # Not homeagent_sdk.process, which imports asyncio: that would double the memory of this process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def main() -> None:
    """Run as the worker process."""
    _die_with(int(sys.argv[4]))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor, bundled, user = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    os.set_inheritable(descriptor, False)
    serve(socket.socket(fileno=descriptor), Adapters(bundled, user))


if __name__ == "__main__":
    main()
