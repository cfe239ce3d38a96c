"""A setting as it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel.config.definitions import Definition


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting with its present value.

    :ivar value: what is in force; None for a secret
    :ivar source: where the value comes from: default, stored, or override (given at start, not stored)
    """

    definition: Definition
    value: Any
    source: str

    @property
    def is_set(self) -> bool:
        """Whether someone gave it a value; the only thing one learns of a secret."""
        return self.source != "default"

    def to_wire(self) -> dict[str, Any]:
        """Return the entry as ``kernel.config_get`` answers it."""
        definition = self.definition
        body: dict[str, Any] = {
            "key": definition.key,
            "value": self.value,
            "default": None if definition.is_secret else definition.default,
            "type": definition.type,
            "description": dict(definition.description),
            "secret": definition.is_secret,
            "source": self.source,
            "is_set": self.is_set,
        }
        bounds = {"minimum": definition.minimum, "maximum": definition.maximum, "options": definition.options or None}
        return body | {
            name: list(bound) if isinstance(bound, tuple) else bound
            for name, bound in bounds.items()
            if bound is not None
        }
