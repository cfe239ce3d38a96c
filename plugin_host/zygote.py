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
from plugin_host.system import set_process_name, signal_when_parent_dies

PRELOADED = (
    "asyncio",
    "msgpack",
    "structlog",
    "zmq",
    "homeagent_sdk.bus",
    "homeagent_sdk.catalogue",
    "homeagent_sdk.logging",
    "homeagent_sdk.migrations",
    "homeagent_sdk.plugin",
    "homeagent_sdk.plugin.runtime",
    "plugin_host.plugin_process",
)
_DESCRIPTORS = 3
_ROUNDS = 10


class SupervisorGone(Exception):
    """Raised when the system says that the supervisor has died."""


def main(arguments: list[str]) -> int:
    """Serve until the supervisor is gone."""
    if len(arguments) != 2 or not all(argument.isdigit() for argument in arguments):
        return EXIT_USAGE
    control = socket.socket(fileno=int(arguments[0]))
    supervisor = int(arguments[1])
    signal.signal(signal.SIGTERM, _on_death_of_supervisor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal_when_parent_dies(signal.SIGTERM)
    try:
        if os.getppid() != supervisor:
            raise SupervisorGone
        set_process_name("plugin-zygote")
        _prepare()
        _serve(control)
    except SupervisorGone:
        pass
    finally:
        _end_what_is_left(os.environ.get(HOST_MARK, ""))
    return EXIT_OK


def _on_death_of_supervisor(number: int, frame: FrameType | None) -> None:
    raise SupervisorGone


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


def _end_what_is_left(host: str) -> None:
    """Kill every process below this plugin host: the supervisor is dead and cannot."""
    for _ in range(_ROUNDS):
        left = orphans.marked(host) if host else []
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
