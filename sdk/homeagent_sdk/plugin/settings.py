"""A plugin's own settings, always at their present values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Settings(Mapping[str, Any]):
    """The values by key, without the prefix ``plugin.<name>.``; they change while the plugin runs."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Take over what the kernel says. Called by the runtime."""
        self._values = dict(values)
