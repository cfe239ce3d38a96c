"""The address and headers of a call, from what an adapter said; the key is added here, after Lua has run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from yarl import URL

from homeagent_sdk.catalogue import text
from provider_service.errors import CallFailed, Fault
from provider_service.source import Source

KEY_PLACEHOLDER = "{api_key}"
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,4096}")
_NOT_FOR_ADAPTERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})


def url_of(source: Source, endpoint: str) -> URL:
    """Join the base URL and the endpoint, which must be a path: it can never lead to another host.

    :raises CallFailed: the endpoint is something else
    """
    if not endpoint.startswith("/") or re.search(r"[\x00-\x20\x7f\\]", endpoint):
        raise CallFailed(Fault.ADAPTER, text("provider.bad_endpoint", adapter=source.adapter))
    base, _, query = source.base_url.partition("?")
    path, _, more = endpoint.partition("?")
    joined = "&".join(filter(None, (query, more)))
    return URL(base.rstrip("/") + path + (f"?{joined}" if joined else ""))


def headers_of(source: Source, wanted: Mapping[str, str], key: str | None) -> dict[str, str]:
    """Return the headers of a call, the key in its place: where the adapter named it, else as a bearer token.

    :raises CallFailed: the adapter named a header that cannot be sent
    """
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    names_key = False
    for name, value in wanted.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name.lower() in _NOT_FOR_ADAPTERS:
            raise CallFailed(Fault.ADAPTER, text("provider.bad_header", adapter=source.adapter))
        if KEY_PLACEHOLDER in value:
            names_key = True
            if key is None:
                continue
            value = value.replace(KEY_PLACEHOLDER, key)
        headers[name] = value
    if key is not None and not names_key and "authorization" not in (name.lower() for name in headers):
        headers["Authorization"] = f"Bearer {key}"
    return headers
