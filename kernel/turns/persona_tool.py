"""``persona_set``: by it the model writes down what the owner decided about its personality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from homeagent_sdk.errors import Denied, Invalid
from kernel.prompt.persona import CONVERSATION, CUSTOM, DEFAULT, LATER
from kernel.turns.environment import TurnRun

PERSONA_SET: Final = {
    "name": "persona_set",
    "description": "Set your personality as the owner decided it.",
    "parameters": {
        "type": "object",
        "properties": {
            "mode": {"type": "string", "enum": [DEFAULT, CUSTOM, LATER]},
            "content": {"type": "string", "description": "for custom: who you are and how you speak"},
        },
        "required": ["mode"],
        "additionalProperties": False,
    },
    "flags": {"idempotent": True, "no_memory": True},
}
"""Not flagged ``always``: in full only while the choice is open, else a line in the catalogue."""


async def persona_set(turn: TurnRun, arguments: Mapping[str, Any]) -> str:
    """Do what the owner decided; the receipt is short, and true.

    :raises Denied: it is not the owner who speaks
    :raises Invalid: the content is missing, superfluous, too long or no text
    :raises Unavailable: it cannot be stored; nothing changed
    """
    if not turn.is_owner_speaking:
        raise Denied(
            "only the owner decides on your personality, in person",
            hint="say so if you were asked to change it; do not try again",
        )
    persona, mode = turn.environment.persona, arguments["mode"]
    content = str(arguments.get("content") or "").strip()
    if bool(content) != (mode == CUSTOM):
        need = "needs content" if mode == CUSTOM else "takes no content"
        raise Invalid(f"mode {mode} {need}", field="content")
    if mode == LATER:
        receipt = "ok" if await persona.postpone() else "nothing to do: the owner has chosen already"
    elif mode == CUSTOM:
        receipt = "ok" if await persona.set(content, CONVERSATION) else "ok: it was so already"
    else:
        await persona.reset(CONVERSATION)
        receipt = "ok"
    turn.prefix = turn.frame.context  # built anew, with what holds now, unless a plugin has made it
    return receipt
