"""A source: one model at one address, as the configuration or the environment defines it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from homeagent_sdk.catalogue import text

PREFIX = "core.llm.sources."
ENVIRONMENT_SOURCE = "env"
ENVIRONMENT_KEY = "HOMEAGENT_LLM_API_KEY"
DEFAULT_CONTEXT_WINDOW = 32_768
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_-]{0,63}")
_NOTHING = frozenset({"", "null", "none", "<nil>"})


@dataclass(frozen=True, slots=True)
class Source:
    """One model at one address.

    :ivar base_url: without a closing slash; the adapter's endpoint follows it
    :ivar context_window: tokens
    :ivar max_concurrent: calls at the same time
    :ivar priority: the higher, the sooner it is asked
    :ivar vision: understands images; declared, since a gateway may drop them and still answer
    :ivar tools: can call tools
    :ivar embedded: the tiny model that comes along
    :ivar max_tokens: limit of an answer, whatever the request allows
    """

    name: str
    base_url: str
    model: str
    adapter: str = "openai"
    context_window: int = DEFAULT_CONTEXT_WINDOW
    max_concurrent: int = 8
    priority: int = 0
    vision: bool = False
    audio: bool = False
    thinking_enabled: bool = True
    tools: bool = True
    embedded: bool = False
    max_tokens: int | None = None

    @property
    def shown_url(self) -> str:
        """The address without what may be secret in it."""
        return self.base_url.partition("?")[0]

    def problem(self) -> str | None:
        """Tell what makes this source unusable, or None."""
        if not _NAME.fullmatch(self.adapter):
            return text("provider.bad_adapter", adapter=self.adapter)
        if not self.model:
            return text("provider.no_model")
        try:
            parts = urlsplit(self.base_url)
            has_host = bool(parts.hostname) and parts.port != 0
        except ValueError:
            return text("provider.bad_url")
        if parts.scheme not in ("http", "https") or not has_host or parts.fragment:
            return text("provider.bad_url")
        if parts.username or parts.password:
            return text("provider.url_with_login")
        return None


_CONFIGURED = {
    "base_url",
    "model",
    "adapter",
    "context_window",
    "max_concurrent",
    "priority",
    "vision",
    "audio",
    "thinking_enabled",
    "tools",
}
_KINDS = {field.name: str(field.type) for field in fields(Source)}


def is_source_name(name: Any) -> bool:
    """Whether ``name`` can name a source (and a file)."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def sources_from_entries(entries: Iterable[Mapping[str, Any]]) -> list[Source]:
    """Read the sources out of configuration entries ``{key, value}``.

    A source whose values make no sense is returned all the same; :meth:`Source.problem` tells why it is not used.
    """
    found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for entry in entries:
        key = str(entry.get("key", ""))
        name, _, field = key.removeprefix(PREFIX).rpartition(".")
        if key.startswith(PREFIX) and is_source_name(name) and field in _CONFIGURED:
            found[name][field] = entry.get("value")
    return [_source(name, values) for name, values in found.items() if _is_meant(values)]


def source_from_environment(environ: Mapping[str, str]) -> Source | None:
    """Return the source that the environment defines, or None if it defines none."""
    names = {"base_url": "BASE_URL", "model": "MODEL", "adapter": "ADAPTER", "context_window": "CONTEXT_WINDOW"}
    values = {field: environ.get(f"HOMEAGENT_LLM_{name}", "") for field, name in names.items()}
    if not values["base_url"] and not values["model"]:
        return None
    return _source(ENVIRONMENT_SOURCE, values)


def _is_meant(values: Mapping[str, Any]) -> bool:
    return any(_clean(values.get(field)) for field in ("base_url", "model"))


def _clean(value: Any) -> str:
    cleaned = "" if value is None else str(value).strip()
    return "" if cleaned.lower() in _NOTHING else cleaned


def _source(name: str, values: Mapping[str, Any]) -> Source:
    given = {field: _typed(_KINDS[field], value) for field, value in values.items() if _clean(value)}
    known = {field: value for field, value in given.items() if value is not None}
    for field in ("context_window", "max_concurrent"):
        if known.get(field, 1) < 1:
            del known[field]
    base_url = str(known.pop("base_url", "")).rstrip("/")
    return Source(name=name, base_url=base_url, model=str(known.pop("model", "")), **known)


def _typed(kind: str, value: Any) -> Any:
    """Return the value in the field's type, or None (so that the default holds) if it has none in it."""
    if kind == "bool":
        return value if isinstance(value, bool) else _clean(value).lower() in ("true", "1", "yes", "on")
    if kind == "int":
        try:
            return int(_clean(value))
        except ValueError:
            return None
    return _clean(value)
