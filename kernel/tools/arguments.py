"""From the text that a model wrote to arguments that may be run. Text that was cut off never runs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

import msgpack

from homeagent_sdk.errors import Invalid

_LONGEST_TEXT = 4 * 1024 * 1024
_SHOWN = 60
# A string, or a bare number with a unit where a value must stand; the latter is put in quotes.
_BARE_UNIT = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[:\[,\s])(-?\d+(?:\.\d+)?(?:ms|s|m|h|d))(?=\s*[,}\]])')


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """What is wrong with an argument, as the model is told.

    :ivar field: the argument, such as ``items[2].name``; None: all of them
    :ivar reason: json, required, type, value, unknown
    :ivar detail: what was found
    :ivar hint: what to send instead
    """

    field: str | None
    reason: str
    detail: str
    hint: str

    def to_wire(self) -> dict[str, Any]:
        """Return it as an object."""
        return asdict(self)


class ArgumentsRefused(Invalid):
    """Raised when a call cannot be run as the model wrote it.

    :ivar problems: all that is wrong, so that the model can mend it at once
    """

    def __init__(self, problems: list[ArgumentProblem]) -> None:
        first = problems[0]
        super().__init__("; ".join(problem.detail for problem in problems), field=first.field, hint=first.hint)
        self.problems = tuple(problems)


def parse_arguments(text: str, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return the arguments of a call.

    Numbers with a bare unit (``{"delay": 20s}``) are mended to strings; anything else that is no JSON is refused, since
    half a command may do something else than the whole.

    :param may_be_empty: whether an empty text means no arguments, as some providers send it; of a tool that takes
        arguments it is refused, since they may have been cut off

    :raises ArgumentsRefused: it is not one whole JSON object
    """
    if len(text) > _LONGEST_TEXT:
        raise _refused(f"the arguments have {len(text)} characters", f"send at most {_LONGEST_TEXT}; split the work")
    if may_be_empty and not text.strip():
        return {}
    try:
        arguments = _load(text)
    except ValueError as error:
        try:
            arguments = _load(_BARE_UNIT.sub(lambda found: found[1] or f'"{found[2]}"', text))
        except ValueError:
            raise _refused(
                _what_is_wrong(text, error), "send the whole call again as one complete JSON object"
            ) from error
    if not isinstance(arguments, dict):
        raise _refused(f"the arguments are a JSON {_kind(arguments)}", "send a JSON object with named arguments")
    _check_transportable(arguments)
    return arguments


def _load(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _check_transportable(arguments: dict[str, Any]) -> None:
    try:
        msgpack.packb(arguments)
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise _refused(
            f"the arguments cannot be passed on: {error!s:.200}",
            "use whole characters, numbers of at most 64 bits and little nesting",
        ) from error


def _what_is_wrong(text: str, error: ValueError) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return f"the arguments are no JSON: {error}"
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"the arguments were cut off after {len(text)} characters: …{text[-_SHOWN:]}"
    return f"the arguments are no JSON: {error.msg} at character {error.pos}: …{text[error.pos : error.pos + _SHOWN]}"


def _refused(detail: str, hint: str) -> ArgumentsRefused:
    return ArgumentsRefused([ArgumentProblem(None, "json", detail, hint)])


def _kind(value: Any) -> str:
    kinds = {list: "array", str: "text", bool: "truth value", int: "number", float: "number"}
    return kinds.get(type(value), "null")
