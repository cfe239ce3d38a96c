"""What a request can be refused for, and how each refusal looks in HTTP and in OpenAI's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, from_wire

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


@dataclass(frozen=True, slots=True)
class Kind:
    """An HTTP status with the ``type`` and ``code`` that OpenAI gives such an error."""

    status: int
    type: str = INVALID_REQUEST
    code: str | None = None


REFUSALS: dict[str, Kind] = {
    "malformed_json": Kind(400),
    "not_an_object": Kind(400),
    "bad_field": Kind(400, code="invalid_value"),
    "no_user_message": Kind(400, code="invalid_value"),
    "empty_text": Kind(400, code="invalid_value"),
    "bad_text": Kind(400, code="invalid_value"),
    "unsupported_part": Kind(400, code="unsupported_value"),
    "one_answer_only": Kind(400, code="unsupported_value"),
    "text_answers_only": Kind(400, code="unsupported_value"),
    "own_tools_only": Kind(400, code="unsupported_value"),
    "bad_conversation": Kind(400, code="invalid_value"),
    "bad_idempotency_key": Kind(400, code="invalid_value"),
    "json_expected": Kind(415),
    "no_key": Kind(401, code="invalid_api_key"),
    "wrong_key": Kind(401, code="invalid_api_key"),
    "not_logged_in": Kind(401, code="not_logged_in"),
    "wrong_host": Kind(403, code="host_not_allowed"),
    "wrong_origin": Kind(403, code="origin_not_allowed"),
    "model_not_found": Kind(404, code="model_not_found"),
    "unknown_turn": Kind(404, code="not_found"),
    "unknown_path": Kind(404, code="not_found"),
    "wrong_method": Kind(405, code="method_not_allowed"),
    "slow_body": Kind(408, code="timeout"),
    "body_too_large": Kind(413, code="request_too_large"),
    "other_body": Kind(422, code="idempotency_key_reused"),
    "too_many_attempts": Kind(429, "rate_limit_error", "rate_limit_exceeded"),
    "unforeseen": Kind(500, SERVER_ERROR, "internal_error"),
}
"""Refusal → how it looks; its words are in the catalogue under ``web.refused.<refusal>``."""

AGENT_ERRORS: dict[str, Kind] = {
    "invalid": Kind(400, code="invalid_value"),
    "not_found": Kind(404, code="not_found"),
    "denied": Kind(403, "permission_error", "denied"),
    "conflict": Kind(409, code="conflict"),
    "timeout": Kind(504, SERVER_ERROR, "timeout"),
    "cancelled": Kind(503, SERVER_ERROR, "cancelled"),
    "unavailable": Kind(503, SERVER_ERROR, "unavailable"),
    "overloaded": Kind(429, "rate_limit_error", "overloaded"),
    "internal": Kind(500, SERVER_ERROR, "internal_error"),
}
"""Code of an error of the agent → how it looks."""

_OUTCOME_ERRORS = AGENT_ERRORS | {"denied": Kind(502, SERVER_ERROR, "upstream_denied")}
"""The same for a turn's outcome: what a model's provider denies was not denied to the client."""


class Refused(Exception):
    """Raised when a request is not served as asked.

    :ivar kind: status, type and code of the answer
    :ivar param: the field of the request at fault
    :ivar headers: HTTP headers that belong to the answer
    """

    def __init__(
        self,
        refusal: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        **values: object,
    ) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.kind = REFUSALS[refusal]
        self.param = param
        self.headers = dict(headers or {})
        self._values = values

    def message(self, language: str | None = None) -> str:
        """Return the words for a person."""
        values = {"param": self.param or "", **self._values}
        if "expected" in values:
            values["expected"] = text(f"web.expected.{values['expected']}", language)
        return text(f"web.refused.{self.refusal}", language, **values)


class AgentRefused(Refused):
    """Raised when the agent answered a request with one of its own errors.

    :param is_outcome: a turn was accepted and ended so; repeating the request would ask the agent again
    """

    def __init__(self, error: HomeAgentError, *, is_outcome: bool = False) -> None:
        Exception.__init__(self, error.message)
        self.refusal = error.code
        self.kind = (_OUTCOME_ERRORS if is_outcome else AGENT_ERRORS)[error.code]
        if error.code == "not_found" and error.field == "model":
            self.kind = REFUSALS["model_not_found"]
        self.param = error.field
        self.headers = {}
        if is_outcome:
            # Clients such as OpenAI's own repeat 5xx by themselves; that would put the question twice.
            self.headers["x-should-retry"] = "false"
        elif self.kind.status in (429, 503):
            self.headers["Retry-After"] = "1"
        self._error = error

    def message(self, language: str | None = None) -> str:
        """Return the agent's words, with its hint."""
        return str(self._error)


def outcome_error(outcome: Mapping[str, Any], language: str | None = None) -> AgentRefused:
    """Return the error that a turn ended with, for an outcome that is no answer."""
    body = outcome.get("error")
    if not isinstance(body, dict):
        body = {"code": "unavailable", "message": text("web.no_answer", language, outcome=outcome.get("outcome", "?"))}
    return AgentRefused(from_wire(body), is_outcome=True)


def error_body(refused: Refused, language: str | None = None) -> dict[str, Any]:
    """Return the JSON body of a refusal, shaped as OpenAI's."""
    return {
        "error": {
            "message": refused.message(language),
            "type": refused.kind.type,
            "param": refused.param,
            "code": refused.kind.code,
        }
    }
