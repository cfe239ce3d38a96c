"""Processes as ``/proc`` shows them: their memory, their age, their children."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """``rss_bytes`` counts shared pages in full, ``pss_bytes`` by their share; None where the system does not tell."""

    rss_bytes: int | None = None
    pss_bytes: int | None = None


def memory_of(pid: int) -> Memory:
    """Return the memory of a process."""
    found: dict[str, int] = {}
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
            for line in lines:
                name, _, rest = line.partition(":")
                if name in ("Rss", "Pss"):
                    found[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        return Memory()
    return Memory(found.get("Rss"), found.get("Pss"))


def uptime_s(pid: int) -> float | None:
    """Return the age of a process in seconds, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants_of(pids: set[int]) -> list[int]:
    """Return the children of the processes, their children, and so on, in ascending order; not the processes."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent_of(int(entry))) is not None:
            children[parent].append(int(entry))
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        for child in children[waiting.pop()]:
            if child not in found and child not in pids:
                found.add(child)
                waiting.append(child)
    return sorted(found)


def command_of(pid: int) -> str:
    """Return a short name for what a process runs: the module for Python, else the program."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            words = [word for word in file.read().split("\0") if word]
    except OSError:
        return "?"
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    return os.path.basename(words[0]) if words else "?"


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
