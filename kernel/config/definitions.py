"""What a setting is: its key, type, default, bounds and meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting, or with ``<name>`` in its key one for each thing that bears a name.

    :ivar key: such as ``core.agent.max_tool_turns`` or ``core.llm.sources.<name>.model``
    :ivar type: string, int, float, bool, duration, select, text (several lines) or secret
    :ivar description: language (en, zh) → what it means, with its unit
    :ivar options: what a ``select`` offers
    :ivar minimum: of a number, or of a duration in seconds; likewise ``maximum``
    :ivar pattern: a regular expression for a whole string that is not empty; ``expected`` says it in words
    """

    key: str
    type: str
    default: Any
    description: Mapping[str, str]
    options: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    expected: str = field(default="a text of another form")

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return self.type == "secret"

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for a setting of each named thing."""
        return "<name>" in self.key

    @property
    def suffix(self) -> str:
        """What follows the name in a pattern."""
        return self.key.partition("<name>.")[2]

    def named(self, name: str) -> Definition:
        """Return the setting of one named thing."""
        return replace(self, key=self.key.replace("<name>", name))

    def name_in(self, key: str) -> str | None:
        """Return the name in ``key`` if this pattern covers it, else None."""
        head, _, tail = self.key.partition("<name>")
        if not (key.startswith(head) and key.endswith(tail)):
            return None
        name = key[len(head) : len(key) - len(tail)]
        return name if _NAME.fullmatch(name) else None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
