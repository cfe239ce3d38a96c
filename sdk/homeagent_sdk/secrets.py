"""Secrets given by environment: read once, out of sight of ``/proc/<pid>/environ``, handed on by descriptor.

The environment a process was started with stays readable in ``/proc`` for as long as it lives, whatever it does to
``os.environ``. So a program that finds a secret there puts it into a sealed file in memory and executes itself again
without it; the second start reads the descriptor and closes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence

from homeagent_sdk.errors import Invalid

DESCRIPTOR_VARIABLE = "HOMEAGENT_SECRETS_FD"
MAX_BYTES = 64 * 1024
"""The most that may be handed over at once."""


def take_from_environment(names: Sequence[str], *, keep_descriptor: bool = False) -> dict[str, str]:
    """Return the secrets among ``names`` that this program was given; call it first thing in ``main``.

    If one of the names is in ``os.environ``, this call does not return: the program is executed again, same process
    id, same arguments, with the secrets on a descriptor and not in its environment. Empty values count as not given.
    ``<NAME>_FILE`` names a file that holds the secret instead, as secrets of containers do.

    :param keep_descriptor: leave the descriptor open and named in the environment, for a child to inherit
    :raises Invalid: ``HOMEAGENT_SECRETS_FD`` does not name a descriptor with secrets, or a file cannot be read
    """
    secrets = {**_read_files(names), **_read_descriptor(keep_descriptor)}
    found = {name: os.environ.pop(name) for name in names if name in os.environ}
    found = {name: value for name, value in found.items() if value}
    if found:
        _execute_again({**secrets, **found})
    return {name: secrets[name] for name in names if name in secrets}


def pass_to_child(secrets: Mapping[str, str]) -> int:
    """Put secrets on a new descriptor for one child and return it.

    Start the child with the descriptor in ``pass_fds`` and its number in ``HOMEAGENT_SECRETS_FD``
    (:data:`DESCRIPTOR_VARIABLE`), then close it here. The child reads it by :func:`take_from_environment`.

    :raises Invalid: the secrets are larger than :data:`MAX_BYTES`
    """
    content = json.dumps(dict(secrets)).encode()
    if len(content) > MAX_BYTES:
        raise Invalid(f"the secrets for a child are larger than {MAX_BYTES} bytes", hint="hand over keys, not files")
    descriptor = os.memfd_create("secrets", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _read_descriptor(keep: bool) -> dict[str, str]:
    number = os.environ.get(DESCRIPTOR_VARIABLE)
    if not number:
        return {}
    try:
        descriptor = int(number)
        content = json.loads(os.pread(descriptor, MAX_BYTES, 0))
    except (ValueError, OverflowError, OSError) as error:
        raise Invalid(
            f"{DESCRIPTOR_VARIABLE}={number} does not name a descriptor with secrets",
            hint=f"unset {DESCRIPTOR_VARIABLE}; it is meant for programs that HomeAgent starts itself",
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise Invalid(f"the descriptor in {DESCRIPTOR_VARIABLE} does not hold names and values")
    if not keep:
        os.close(descriptor)
        del os.environ[DESCRIPTOR_VARIABLE]
    return content


def _read_files(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        path = os.environ.get(f"{name}_FILE")
        if path and name not in os.environ:
            try:
                with open(path, encoding="utf-8") as file:
                    found[name] = file.read(MAX_BYTES).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise Invalid(
                    f"the file {path} in {name}_FILE cannot be read: {error}",
                    hint="name a text file that this user can read, or unset the variable",
                ) from error
    return {name: value for name, value in found.items() if value}


def _execute_again(secrets: Mapping[str, str]) -> None:
    if not sys.executable or not sys.orig_argv:
        raise Invalid(
            "a key was given by environment, but this Python cannot execute itself again to hide it",
            hint="give the key on standard input or in a file instead",
        )
    descriptor = pass_to_child(secrets)
    os.set_inheritable(descriptor, True)
    environment = {**os.environ, DESCRIPTOR_VARIABLE: str(descriptor)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
