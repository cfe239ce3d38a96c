"""``homeagent chat``: talk to the agent in the terminal, or ask it one thing from a script."""

from __future__ import annotations

import sys
import uuid
from typing import Annotated

import typer

from homeagent.chat_connection import ChatConnection, error_of
from homeagent.chat_screen import ChatScreen, without_controls
from homeagent.commands._shared import DataDirOption, JsonOption, data_dir, run, tell_error
from homeagent.exit_codes import FAILED, OK
from homeagent.output import tell, write, write_json
from homeagent_sdk.catalogue import text

MessageOption = Annotated[
    str | None, typer.Option("-m", "--message", metavar="TEXT", help=text("command.option_message"))
]
ConversationOption = Annotated[
    str | None, typer.Option("-c", "--conversation", metavar="NAME", help=text("command.option_conversation"))
]

_USUAL_CONVERSATION = "main"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("chat", help=text("command.help_chat"))(_chat)


def _chat(
    message: MessageOption = None,
    conversation: ConversationOption = None,
    data_dir_: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    if message == "-" or (message is None and not sys.stdin.isatty()):
        message = sys.stdin.read()
    data = data_dir(data_dir_)
    if message is None:
        ChatScreen(ChatConnection(data, conversation or _USUAL_CONVERSATION), data).run()
        return
    once = ChatConnection(data, conversation or f"once-{uuid.uuid4().hex[:12]}")
    run(lambda: _ask_once(once, message, as_json))


async def _ask_once(connection: ChatConnection, message: str, as_json: bool) -> int:
    """Print the answer and nothing else; whatever is not an answer goes to stderr, with exit code 1."""
    turn_id, outcome = None, {}
    async for item in connection.send(message):
        if item["type"] == "accepted":
            turn_id = item["turn_id"]
        elif item["type"] == "outcome":
            outcome = item
    if as_json:
        write_json({**outcome, "turn_id": turn_id, "conversation": connection.conversation})
        return OK if outcome["outcome"] == "answer" else FAILED
    error = error_of(outcome)
    if error is not None:
        tell_error(error)
        return FAILED
    answer = str(outcome.get("text") or "")
    if answer:
        write(without_controls(answer) if sys.stdout.isatty() else answer)
    if outcome["outcome"] != "answer":
        tell(text(f"command.chat_{outcome['outcome']}"))
        return FAILED
    return OK
