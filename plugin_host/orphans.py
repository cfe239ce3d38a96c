"""Finding processes that a plugin left behind, also those that left its session."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plugin_host.launch import HOST_MARK, PLUGIN_MARK


@dataclass(frozen=True, slots=True)
class Found:
    """A process as /proc shows it."""

    pid: int
    parent: int
    session: int
    state: str

    @property
    def is_dead(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in "ZX"


def look_at(pid: int) -> Found | None:
    """Return a process, or None if it has gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name stands in parentheses and may itself hold spaces and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Found(pid, int(fields[1]), int(fields[3]), fields[0].decode())


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    split = (os.fsdecode(pair).partition("=") for pair in pairs if b"=" in pair)
    return {name: value for name, _, value in split}


def all_processes() -> Iterator[Found]:
    """Iterate over the processes that this one can see."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            found = look_at(int(entry))
            if found is not None:
                yield found


def left_behind(parent: int, known: Iterable[int], living: Iterable[str]) -> list[int]:
    """Return the living children of ``parent`` that nobody answers for.

    A child is answered for if it is known, if its environment names a plugin that lives, or, where it names none, if
    it is in the session of a known one.

    :param known: pids of the zygote and of plugins
    :param living: the marks of the plugins that live
    """
    known, living = set(known), set(living)
    unclaimed = []
    for found in all_processes():
        if found.parent != parent or found.is_dead or found.pid in known:
            continue
        mark = environment_of(found.pid).get(PLUGIN_MARK)
        if mark not in living if mark else found.session not in known:
            unclaimed.append(found.pid)
    return unclaimed


def marked(host: str, *, is_prefix: bool = False) -> list[int]:
    """Return the living processes below the plugin host ``host``, other than this one.

    :param is_prefix: take all hosts whose mark begins so
    """
    found_pids = []
    for found in all_processes():
        if found.pid == os.getpid() or found.is_dead:
            continue
        mark = environment_of(found.pid).get(HOST_MARK, "")
        if mark == host or (is_prefix and mark.startswith(host)):
            found_pids.append(found.pid)
    return found_pids
