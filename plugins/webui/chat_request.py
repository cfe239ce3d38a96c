"""Reads the body of ``POST /v1/chat/completions``.

Used: ``model``, ``messages`` (the last user message is the input, what stands before it serves to recognise the
conversation), ``stream``, ``stream_options.include_usage``, ``metadata.conversation``, ``metadata.no_memory``,
``user``.

Refused, because the client would rely on it: ``n`` over 1, a ``response_format`` other than text, a ``tool_choice``
that demands one of the client's tools, audio output, parts that are not text.

Everything else is ignored: history, system prompt, tools, temperature and limits are the agent's own.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import Refused
from .history_index import Message

LONGEST_CONVERSATION = 128
"""Characters of a conversation's name; with the principal before it, the kernel takes 200."""

LONGEST_IDEMPOTENCY_KEY = 255

_TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks."""

    model: str
    text: str
    messages: tuple[Message, ...]
    """What was said up to and with the input."""
    conversation: str | None
    """As the client calls it, or None if it gave no name."""
    no_memory: bool
    stream: bool
    include_usage: bool
    fingerprint: bytes
    """The same for bodies that say the same."""


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object in a body.

    :raises Refused: it is no JSON, or no object
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("malformed_json", reason=str(error)[:200]) from error
    if not isinstance(parsed, dict):
        raise Refused("not_an_object")
    return parsed


def parse_chat_request(body: bytes) -> ChatRequest:
    """Read a whole request. Costs time with a large body: call in a thread then.

    :raises Refused: it is malformed, or asks for what there is not
    """
    given = parse_json(body)
    _refuse_unsupported(given)
    messages = given.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Refused("bad_field", param="messages", expected="messages")
    at = _last_user_message(messages)
    text = input_text(messages[at].get("content"), f"messages[{at}].content")
    metadata = _typed(given, "metadata", dict, "object") or {}
    options = _typed(given, "stream_options", dict, "object") or {}
    return ChatRequest(
        model=_typed(given, "model", str, "text") or "homeagent",
        text=text,
        messages=(*_history(messages[:at]), ("user", text)),
        conversation=_conversation(given, metadata),
        no_memory=_flag(metadata, "no_memory", "metadata.no_memory"),
        stream=_flag(given, "stream", "stream"),
        include_usage=_flag(options, "include_usage", "stream_options.include_usage"),
        fingerprint=hashlib.sha256(json.dumps(given, sort_keys=True).encode()).digest(),
    )


def input_text(content: Any, param: str) -> str:
    """Return the text of a message that is put to the agent.

    :raises Refused: there is none, or there is more than text
    """
    if isinstance(content, list):
        content = "\n".join(_part_text(part, f"{param}[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise Refused("bad_field", param=param, expected="content")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise Refused("bad_text", param=param) from error
    if not content.strip():
        raise Refused("empty_text", param=param)
    return content


def conversation_name(name: Any, param: str) -> str:
    """Return a conversation's name as a client gave it.

    :raises Refused: it is no text, empty, too long, or has control characters
    """
    is_fit = isinstance(name, str) and 0 < len(name) <= LONGEST_CONVERSATION
    if not is_fit or any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise Refused("bad_conversation", param=param, limit=LONGEST_CONVERSATION)
    return str(name)


def idempotency_key(header: str | None) -> str | None:
    """Return the value of an ``Idempotency-Key`` header, if there is one.

    :raises Refused: it is empty or too long
    """
    if header is None:
        return None
    if not 0 < len(header) <= LONGEST_IDEMPOTENCY_KEY:
        raise Refused("bad_idempotency_key", param="Idempotency-Key", limit=LONGEST_IDEMPOTENCY_KEY)
    return header


def _refuse_unsupported(given: dict[str, Any]) -> None:
    count = given.get("n")
    if count is not None and (isinstance(count, bool) or count != 1):
        raise Refused("one_answer_only", param="n")
    response_format = given.get("response_format")
    if isinstance(response_format, dict) and response_format.get("type", "text") != "text":
        raise Refused("text_answers_only", param="response_format")
    choice = given.get("tool_choice", given.get("function_call"))
    if choice not in (None, "auto", "none"):
        raise Refused("own_tools_only", param="tool_choice")
    modalities = given.get("modalities")
    if isinstance(modalities, list) and any(modality != "text" for modality in modalities):
        raise Refused("text_answers_only", param="modalities")


def _last_user_message(messages: Sequence[dict[str, Any]]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user":
            return index
    raise Refused("no_user_message", param="messages")


def _part_text(part: Any, param: str) -> str:
    if not isinstance(part, dict):
        raise Refused("bad_field", param=param, expected="part")
    if part.get("type") not in _TEXT_PARTS:
        raise Refused("unsupported_part", param=param, type=str(part.get("type"))[:40])
    if not isinstance(part.get("text"), str):
        raise Refused("bad_field", param=f"{param}.text", expected="text")
    return str(part["text"])


def _history(messages: Sequence[dict[str, Any]]) -> list[Message]:
    """Return what was said. Parts that are not text only count as having been there."""
    said = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            texts = [str(part.get("text", part.get("type"))) for part in content if isinstance(part, dict)]
            content = "\n".join(texts)
        if message.get("role") in ("user", "assistant") and isinstance(content, str) and content.strip():
            said.append((str(message["role"]), content))
    return said


def _conversation(given: dict[str, Any], metadata: dict[str, Any]) -> str | None:
    if metadata.get("conversation") is not None:
        return conversation_name(metadata["conversation"], "metadata.conversation")
    if given.get("user") is not None:
        return conversation_name(given["user"], "user")
    return None


def _typed(given: dict[str, Any], key: str, kind: type, expected: str) -> Any:
    value = given.get(key)
    if value is not None and not isinstance(value, kind):
        raise Refused("bad_field", param=key, expected=expected)
    return value


def _flag(given: dict[str, Any], key: str, param: str) -> bool:
    """Return a truth value; metadata of OpenAI can only hold texts, so these are understood too."""
    value = given.get(key)
    if value in (None, "", "false", "0") or value is False:
        return False
    if value in ("true", "1") or value is True:
        return True
    raise Refused("bad_field", param=param, expected="flag")
