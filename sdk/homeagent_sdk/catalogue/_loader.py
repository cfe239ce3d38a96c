"""Reads the catalogue's files, each at its first use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh")

_FOLDER = Path(__file__).parent


def language() -> str:
    """Return the language of this process: ``HOMEAGENT_LANG``, else that of the locale, else English."""
    for name in ("HOMEAGENT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        chosen = os.environ.get(name, "")
        if chosen:
            return "zh" if chosen.lower().startswith("zh") else "en"
    return "en"


def text(key: str, /, lang: str | None = None, **values: object) -> str:
    """Return the text ``key`` with its ``{placeholders}`` filled in.

    :param key: ``<part>.<name>``, such as ``command.port_in_use``
    :param lang: en or zh; default: the language of this process
    :returns: the English text if the other lacks it, and the key itself if both do: a missing text is no reason to fail
    """
    part = key.partition(".")[0]
    for candidate in (lang or language(), "en"):
        found = texts(part, candidate).get(key)
        if found is not None:
            return found.format_map(values) if values else found
    return key


@cache
def texts(part: str, lang: str) -> Mapping[str, str]:
    """Return all texts of a part in one language; empty if there is no such part."""
    file = _FOLDER / f"{part}.{lang}.json"
    if not part.isidentifier() or not file.is_file():
        return {}
    loaded: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def parts() -> list[str]:
    """Return the names of all parts that have a file in any language."""
    return sorted({file.name.split(".")[0] for file in _FOLDER.glob("*.json")})
