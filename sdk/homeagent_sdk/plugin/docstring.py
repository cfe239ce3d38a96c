"""What a tool's docstring tells the model: a description, and one line for each parameter."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_FIELD = re.compile(r"^:(?P<kind>\w+)(?:\s+(?P<name>[^:]+))?:\s*(?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The parts of a docstring that become part of a tool's schema."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(function: Callable[..., Any]) -> Docstring:
    """Split a function's reST docstring; fields other than ``:param name:`` are left out."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    current: str | None = None
    in_fields = False
    for line in inspect.cleandoc(function.__doc__ or "").splitlines():
        match = _FIELD.match(line)
        if match:
            in_fields = True
            is_parameter = match["kind"] == "param" and match["name"]
            # ":param int count: ..." also names the type; the name is the last word.
            current = match["name"].split()[-1] if is_parameter else None
            if current:
                parameters[current] = match["text"].strip()
        elif not in_fields:
            description.append(line.rstrip())
        elif current and line.strip():
            parameters[current] = f"{parameters[current]} {line.strip()}".strip()
    return Docstring("\n".join(description).strip(), parameters)
