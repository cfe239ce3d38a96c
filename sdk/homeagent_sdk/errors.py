"""Every error that crosses the bus: typed by ``code``, written for the person who can fix it."""

from __future__ import annotations

from typing import Any, ClassVar


class HomeAgentError(Exception):
    """Base of all errors of HomeAgent.

    :param message: what happened and where, for a person
    :param field: the field of the request at fault, if one is
    :param hint: what to do about it
    :param detail: facts for programs, msgpack-able; never a secret, never a traceback
    """

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        hint: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint
        self.detail = detail or {}

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def to_wire(self) -> dict[str, Any]:
        """Return the body of an ``error`` message."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.field is not None:
            body["field"] = self.field
        if self.hint is not None:
            body["hint"] = self.hint
        if self.detail:
            body["detail"] = self.detail
        return body


class Invalid(HomeAgentError):
    """Raised when a request is malformed or breaks a rule; repeating it unchanged cannot help."""

    code = "invalid"


class NotFound(HomeAgentError):
    """Raised when what the request names does not exist."""

    code = "not_found"


class Denied(HomeAgentError):
    """Raised when the caller may not do this, or did not prove who it is."""

    code = "denied"


class Conflict(HomeAgentError):
    """Raised when the request collides with something that exists already."""

    code = "conflict"


class TimedOut(HomeAgentError):
    """Raised when the deadline passed before an answer came; the work may still have been done."""

    code = "timeout"


class Cancelled(HomeAgentError):
    """Raised when the caller, or a person, cancelled the call."""

    code = "cancelled"


class Unavailable(HomeAgentError):
    """Raised when the peer is not there: not started, restarting, suspect or gone."""

    code = "unavailable"


class Overloaded(HomeAgentError):
    """Raised when a bounded queue on the way is full; trying again later helps."""

    code = "overloaded"


class Internal(HomeAgentError):
    """Raised when the callee failed in a way that it did not foresee; its log has the traceback."""

    code = "internal"


_BY_CODE: dict[str, type[HomeAgentError]] = {
    kind.code: kind
    for kind in (Invalid, NotFound, Denied, Conflict, TimedOut, Cancelled, Unavailable, Overloaded, Internal)
}
CODES: frozenset[str] = frozenset(_BY_CODE)


def from_wire(body: Any) -> HomeAgentError:
    """Turn the body of an ``error`` message back into an exception; an unknown code becomes :class:`Internal`."""
    if not isinstance(body, dict):
        return Internal("the peer sent an error without a body")
    kind = _BY_CODE.get(str(body.get("code")), Internal)
    detail = body.get("detail")
    return kind(
        str(body.get("message") or kind.code),
        field=body.get("field"),
        hint=body.get("hint"),
        detail=detail if isinstance(detail, dict) else None,
    )
