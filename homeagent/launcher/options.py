"""What ``homeagent up`` was asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``homeagent up``.

    ``port`` is None if the one in the configuration is to be used (8080 unless it was changed), 0 for any free port;
    ``overrides`` are ``key=value`` texts that win over the stored configuration for this run.
    """

    data_dir: Path
    port: int | None = None
    overrides: tuple[str, ...] = ()


def default_data_dir() -> Path:
    """Return the data directory of this user: ``HOMEAGENT_DATA_DIR``, else the usual place of the system."""
    given = os.environ.get("HOMEAGENT_DATA_DIR")
    return Path(given) if given else platformdirs.user_data_path("homeagent")


def parse(arguments: Sequence[str]) -> Options | None:
    """Read the arguments that follow ``homeagent up``, without loading a command line library.

    :returns: None for whatever is not plainly right: the full parser then explains
    """
    data_dir, port, overrides = default_data_dir(), None, []
    rest = list(arguments)
    while rest:
        name, joined, value = rest.pop(0).partition("=")
        if name not in ("--data-dir", "--port", "--set"):
            return None
        if not joined:
            if not rest:
                return None
            value = rest.pop(0)
        if name == "--data-dir" and value:
            data_dir = Path(value)
        elif name == "--port" and value.isascii() and value.isdigit() and int(value) < 65536:
            port = int(value)
        elif name == "--set" and "=" in value:
            overrides.append(value)
        else:
            return None
    return Options(data_dir, port, tuple(overrides))
