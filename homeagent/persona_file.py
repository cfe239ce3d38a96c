"""Reads a personality from a file, since the kernel opens no file of a user."""

from __future__ import annotations

from pathlib import Path

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Invalid

PERSONAL_FILE = "personal.md"
"""In the data directory; imported by ``homeagent up`` whenever it has changed."""
MOST_BYTES = 16 * 1024
"""What the kernel takes: the model reads all of it again in every turn."""


def read_persona(path: Path) -> str:
    """Return what a file says.

    :raises Invalid: it is longer than :data:`MOST_BYTES`, or not UTF-8
    :raises OSError: it cannot be read
    """
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise Invalid(
            text("command.persona_too_long", path=path, limit=MOST_BYTES), hint=text("command.persona_too_long_hint")
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(
            text("command.persona_not_utf8", path=path, position=error.start),
            hint=text("command.persona_not_utf8_hint"),
        ) from error
