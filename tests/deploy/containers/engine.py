"""The Docker engine and Compose on this machine, whichever generation of it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

ANSWER_S = 60.0


class NoEngine(Exception):
    """Raised when there is no Docker engine, or no Compose, to test with."""


class Failed(Exception):
    """Raised when a command failed that was expected to work."""


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = ANSWER_S,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    :raises Failed: it ended with another code than 0; the message has what it said
    """
    done = subprocess.run(
        command,
        env=environment,
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode:
        said = (done.stdout[-3000:] + done.stderr[-3000:]).strip()
        raise Failed(f"`{' '.join(command)[:200]}` ended with {done.returncode}:\n{said}")
    return done


def version() -> str:
    """Return the version of the engine.

    :raises NoEngine: there is none that answers
    """
    try:
        return run(["docker", "version", "--format", "{{.Server.Version}}"]).stdout.strip()
    except FileNotFoundError:
        raise NoEngine("there is no `docker` command on this machine") from None
    except (Failed, subprocess.TimeoutExpired) as error:
        raise NoEngine(f"no Docker engine answers: {str(error).splitlines()[-1]}") from None


def find_compose() -> list[str]:
    """Return the command for Compose: the plugin of Docker, else the program of its own.

    :raises NoEngine: there is neither
    """
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            if run([*command, "version"], check=False).returncode == 0:
                return command
        except FileNotFoundError:
            continue
    raise NoEngine("there is neither `docker compose` nor `docker-compose` on this machine")
