"""The seven stages of a turn: what a handler may change in each, and what setting ``response`` means there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from homeagent_sdk.plugin.messages import STAGES as CHANGES
from homeagent_sdk.plugin.messages import TOOL_STAGES

RESPONSE = "response"
"""The field by which a handler cuts a stage short; it must be among the changes that the handler declares."""


class ResponseMeaning(Enum):
    """What the turn does with a ``response``, once all handlers of the stage are done."""

    ANSWERS = "it is the answer; no model is asked"
    ENDS_LOOP = "it ends the tool loop as the answer"
    REJECTS_CALL = "the call is not made; the model sees this as the reason"
    REPLACES_TEXT = "it replaces the text; an empty one sends nothing"
    NOTHING = "it cannot be set"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    :ivar changes: the fields that a handler may declare, ``response`` among them where it means something
    :ivar has_tool: whether it runs for one tool call, so that the scope ``own_tools`` makes sense
    """

    name: str
    response: ResponseMeaning
    changes: frozenset[str]
    has_tool: bool


def _stage(name: str, response: ResponseMeaning) -> Stage:
    return Stage(name, response, CHANGES[name], name in TOOL_STAGES)


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        _stage("on_input", ResponseMeaning.ANSWERS),
        _stage("pre_action", ResponseMeaning.ANSWERS),
        _stage("post_action", ResponseMeaning.ENDS_LOOP),
        _stage("before_toolcall", ResponseMeaning.REJECTS_CALL),
        _stage("after_toolcall", ResponseMeaning.ENDS_LOOP),
        _stage("before_output", ResponseMeaning.REPLACES_TEXT),
        _stage("after_output", ResponseMeaning.NOTHING),
    )
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_message_list(value: Any) -> bool:
    return isinstance(value, list) and all(_is_mapping(each) and _is_text(each.get("role")) for each in value)


def _is_call_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_mapping(each) and _is_text(each.get("id")) and _is_text(each.get("name")) for each in value
    )


FIELD_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "raw_message": ("a text", _is_text),
    "context_messages": ("a list of messages, each with a role", _is_message_list),
    "text": ("a text", _is_text),
    "tool_calls": ("a list of calls, each with id and name", _is_call_list),
    "arguments": ("an object", _is_mapping),
    "result": ("any value", lambda _: True),
    "final_text": ("a text", _is_text),
    RESPONSE: ("a text", _is_text),
}
"""Field → what it must be, in words and as a check. A handler that writes anything else is skipped."""
