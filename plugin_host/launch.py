"""What a plugin process is told when it is forked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from homeagent_sdk.errors import Invalid

HOST_MARK = "HOMEAGENT_PLUGIN_HOST"
"""Environment variable of the zygote, and so of every process below it: which plugin host they belong to."""

PLUGIN_MARK = "HOMEAGENT_PLUGIN"
"""Environment variable of whatever a plugin starts: ``<name>:<generation>``."""

LARGEST_MESSAGE_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of one plugin. Holds no secret: the zygote sees it."""

    name: str
    folder: str
    """The plugin's folder, absolute."""
    data_dir: str
    """The agent's data directory, absolute."""
    tier: str
    """builtin or external."""
    generation: int
    supervisor_pid: int

    @property
    def mark(self) -> str:
        """The value of :data:`PLUGIN_MARK`."""
        return f"{self.name}:{self.generation}"

    def encode(self) -> bytes:
        """Return it as a message to the zygote.

        :raises Invalid: the paths are too long for a message
        """
        message = json.dumps(asdict(self)).encode()
        if len(message) > LARGEST_MESSAGE_BYTES:
            raise Invalid(f"the path of plugin {self.name} is too long", hint="move the data directory")
        return message

    @classmethod
    def decode(cls, message: bytes) -> Launch:
        """Read a message of :meth:`encode`."""
        return cls(**json.loads(message))
