"""The zygote: has imported what every plugin needs, and forks a plugin process on request.

``python -m plugin_host.zygote DESCRIPTOR SUPERVISOR_PID``, where the descriptor is one end of a SOCK_SEQPACKET pair.
A request is a :class:`~plugin_host.launch.Launch` with three descriptors (token channel, stdout, stderr); the answer is
``{"pid"}`` or ``{"error"}``. It has a single thread and no ZeroMQ socket, since neither survives a fork, and no secret,
since every plugin gets a copy of its memory. When the supervisor dies it kills what is left of the plugins.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from types import FrameType

from homeagent_sdk.process import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from plugin_host import orphans
from plugin_host.launch import HOST_MARK, LARGEST_MESSAGE_BYTES, Launch
from plugin_host.system import send_signal, set_process_name, signal_when_parent_dies

PRELOADED = (
    "homeagent_sdk.logging",
    "asyncio",
    "msgpack",
    "structlog",
    "zmq",
    "homeagent_sdk.bus",
    "homeagent_sdk.catalogue",
    "homeagent_sdk.migrations",
    "homeagent_sdk.plugin",
    "homeagent_sdk.plugin.runtime",
    "plugin_host.plugin_process",
)
"""What every plugin needs. Not aiohttp: with one plugin that uses it all together had 82 MB without, 87 with (PSS)."""

_DESCRIPTORS = 3
_ROUNDS = 10


def main(arguments: list[str]) -> int:
    """Serve until the supervisor is gone."""
    if len(arguments) != 2 or not all(argument.isdigit() for argument in arguments):
        return EXIT_USAGE
    control = socket.socket(fileno=int(arguments[0]))
    supervisor = int(arguments[1])
    signal.signal(signal.SIGTERM, _on_death_of_supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_when_parent_dies(signal.SIGTERM)
    set_process_name("plugin-zygote")
    if os.getppid() == supervisor:
        _prepare()
        _serve(control)
    _end_what_is_left()
    return EXIT_OK


def _on_death_of_supervisor(number: int, frame: FrameType | None) -> None:
    """Take the news from the system; the end of file on the line may come before it or after."""
    _end_what_is_left()
    os._exit(EXIT_OK)


def _prepare() -> None:
    """Import, then keep the collector off what was imported: touching it would copy the pages in every plugin."""
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, LARGEST_MESSAGE_BYTES, _DESCRIPTORS)
        if not message:
            return
        try:
            answer: dict[str, object] = {"pid": _fork_twice(Launch.decode(message), control, descriptors)}
        except (OSError, ValueError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(json.dumps(answer).encode())


def _fork_twice(launch: Launch, control: socket.socket, descriptors: list[int]) -> int:
    """Fork a process whose parent ends at once, so that the supervisor (the subreaper) becomes its parent."""
    if len(descriptors) != _DESCRIPTORS:
        raise ValueError(f"{len(descriptors)} descriptors came with the launch of {launch.name}")
    read_end, write_end = os.pipe()
    between = os.fork()
    if between == 0:
        _fork_again(launch, descriptors, write_end)
    os.close(write_end)
    try:
        answer = os.read(read_end, 32)
    finally:
        os.close(read_end)
        os.waitpid(between, 0)
    if not answer.isdigit():
        raise OSError("the system could not fork")
    return int(answer)


def _fork_again(launch: Launch, descriptors: list[int], write_end: int) -> None:
    """Run in the process between; never return."""
    code = EXIT_FAILED
    try:
        pid = os.fork()
        if pid == 0:
            from plugin_host.plugin_process import become_plugin

            become_plugin(launch, *descriptors)
        os.write(write_end, str(pid).encode())
        code = EXIT_OK
    finally:
        os._exit(code)


def _end_what_is_left() -> None:
    """Kill every process below this plugin host: the supervisor is dead and cannot."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    host = os.environ.get(HOST_MARK, "")
    for _ in range(_ROUNDS):
        left = orphans.marked(host) if host else []
        if not left:
            return
        for pid in left:
            send_signal(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
