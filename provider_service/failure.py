"""Tells by status and code what an error of an API means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from homeagent_sdk.catalogue import text
from provider_service.errors import CallFailed, Fault

MAX_REASON = 200

_BY_STATUS = {
    400: Fault.REQUEST,
    401: Fault.KEY,
    403: Fault.MODEL,
    413: Fault.REQUEST,
    422: Fault.REQUEST,
    429: Fault.RATE,
}
_SAID_BY_ADAPTER = {fault.value: fault for fault in Fault} | {"": None}


def failure_of(status: int | None, told: Any, headers: Mapping[str, str], wall: float | None = None) -> CallFailed:
    """Return the failure that an error answer means.

    :param told: what the adapter's ``transform_error`` made of the body, or None
    :param headers: of the answer, for Retry-After
    :param wall: seconds since 1970; default: now
    """
    facts = told if isinstance(told, dict) else {}
    fault = _SAID_BY_ADAPTER.get(str(facts.get("kind") or "")) or _BY_STATUS.get(status or 0, Fault.OTHER)
    retry = _seconds(facts.get("retry_after_s"))
    if retry is None:
        retry = retry_after_s(headers, time.time() if wall is None else wall)
    return CallFailed(fault, _reason(status, facts, headers), status=status, retry_after_s=retry)


def retry_after_s(headers: Mapping[str, str], wall: float) -> float | None:
    """Return how long an answer asks to wait: Retry-After, in seconds or as a date."""
    told = headers.get("Retry-After", "").strip()
    if not told:
        return None
    if (seconds := _seconds(told)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - wall)
    except (ValueError, OverflowError):
        return None


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _reason(status: int | None, facts: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    message = " ".join(str(facts.get("message") or facts.get("code") or "").split())[:MAX_REASON]
    if status is None:
        return message or text("provider.error_in_stream")
    if 300 <= status < 400:
        return text("provider.redirected", status=status, target=headers.get("Location", "?").partition("?")[0])
    if not message:
        return text("provider.http_status", status=status)
    return text("provider.http_error", status=status, message=message)
