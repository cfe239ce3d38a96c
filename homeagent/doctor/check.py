"""The result of one examination."""

from __future__ import annotations

from dataclasses import dataclass

from homeagent_sdk.catalogue import text

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do if it is not well.

    ``state`` is ok, warn or fail; ``message`` says what was found, ``todo`` is empty if there is nothing to do.
    """

    name: str
    state: str
    message: str
    todo: str = ""


def found(name: str, state: str, finding: str, /, **values: object) -> Check:
    """Return a check whose texts are ``command.doctor_<finding>`` and, unless it is ok, ``…_todo``."""
    message = text(f"command.doctor_{finding}", None, **values)
    todo = "" if state == OK else text(f"command.doctor_{finding}_todo", None, **values)
    return Check(name, state, message, todo)
