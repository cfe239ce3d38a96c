"""The interactive chat: reads lines, shows answers as they come."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable

import typer

from homeagent.chat_connection import ChatConnection, Item, error_of
from homeagent.chat_listener import ChatListener
from homeagent.client import is_running, not_running, operator
from homeagent.exit_codes import exit_code_of
from homeagent.launcher.announcer import model_notice
from homeagent.output import console
from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import DataDir

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MAX_TYPED_AHEAD = 16
_NOTICE_WITHIN_S = 3.0
_PROMPT = "> "
_TURNS_REMEMBERED = 64


def without_controls(words: str) -> str:
    """Return the text without what could move the cursor or change the terminal: it may come from anywhere."""
    return _CONTROLS.sub("", words)


class ChatScreen:
    """One sitting at the terminal.

    While an answer comes, what is typed is taken too: ``/stop`` (or Ctrl-C) stops the answer, ``/quit`` leaves, and any
    other line becomes the next message.
    """

    def __init__(self, connection: ChatConnection, data: DataDir) -> None:
        self._connection = connection
        self._data = data
        self._console = console()
        self._typed_ahead: deque[str] = deque(maxlen=_MAX_TYPED_AHEAD)
        self._line_is_open = False
        self._is_asking_person = False
        self._asked: deque[str] = deque(maxlen=_TURNS_REMEMBERED)
        self._outputs: deque[Item] = deque(maxlen=_TURNS_REMEMBERED)
        self._showing = threading.Lock()
        self._listener = ChatListener(connection, self._take_output)

    def run(self) -> None:
        """Talk until the person leaves."""
        # Loaded for its effect: input() then edits lines and remembers them.
        import readline  # noqa: F401

        try:
            if not is_running(self._data):
                raise not_running(self._data)
            self._note(text("command.chat_welcome", conversation=self._connection.conversation))
            notice = asyncio.run(self._notice())
            if notice:
                self._note(notice)
            self._listener.start()
            while self._handle(self._next_line()):
                pass
        except HomeAgentError as error:
            self._error(error)
            raise typer.Exit(exit_code_of(error)) from error

    def _next_line(self) -> str:
        if self._typed_ahead:
            return self._typed_ahead.popleft()
        try:
            self._is_asking_person = True
            self._show_outputs()
            return input(_PROMPT).strip()
        except EOFError:
            return "/quit"
        except KeyboardInterrupt:
            self._console.print()
            return "/quit"
        finally:
            self._is_asking_person = False

    def _handle(self, line: str) -> bool:
        """Do what a line says; return whether to go on."""
        match line:
            case "":
                return True
            case "/quit" | "/exit":
                return False
            case "/help":
                self._note(text("command.chat_help"))
            case "/new":
                self._connection.conversation = f"chat-{uuid.uuid4().hex[:12]}"
                self._note(text("command.chat_new"))
            case "/stop":
                asyncio.run(self._stop())
            case _ if line.startswith("/") and " " not in line:
                self._note(text("command.chat_unknown", command=line))
            case _:
                return asyncio.run(self._ask(line))
        return True

    async def _notice(self) -> str | None:
        """Return a remark about the model. That it cannot be had just now is no reason not to talk."""
        try:
            return await self._ask_about_model()
        except HomeAgentError:
            return None

    async def _ask_about_model(self) -> str | None:
        async with operator(self._data, _NOTICE_WITHIN_S) as peer:
            return await model_notice(lambda method, body: peer.call(method, body, timeout_s=_NOTICE_WITHIN_S))

    async def _ask(self, message: str) -> bool:
        """Show the answer to a message; return whether to go on."""
        loop = asyncio.get_running_loop()
        leaving = asyncio.Event()
        stops: set[asyncio.Task[None]] = set()

        def stop() -> None:
            stops.add(asyncio.create_task(self._stop()))

        loop.add_signal_handler(signal.SIGINT, stop)
        loop.add_reader(sys.stdin.fileno(), self._take_line, stop, leaving)
        answering = asyncio.create_task(self._show_answer(message))
        left = asyncio.create_task(leaving.wait())
        try:
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGINT)
            for task in (answering, left, *stops):
                task.cancel()
            await asyncio.gather(answering, left, *stops, return_exceptions=True)
        return not leaving.is_set()

    def _take_line(self, stop: Callable[[], None], leaving: asyncio.Event) -> None:
        line = os.read(sys.stdin.fileno(), 64 * 1024).decode("utf-8", "replace").strip()
        if line == "/stop":
            stop()
        elif line in ("/quit", "/exit"):
            leaving.set()
        elif line:
            self._typed_ahead.append(line)

    async def _show_answer(self, message: str) -> None:
        streamed = ""
        async for item in self._connection.send(message):
            match item["type"]:
                case "accepted":
                    self._asked.append(item["turn_id"])
                case "delta":
                    streamed += item["text"]
                    self._write(item["text"])
                case "tool":
                    self._note(text(f"command.chat_tool_{item['status']}", tool=item["tool"]))
                case "reset" | "reconnected":
                    if streamed:
                        self._note(text("command.chat_again"))
                    streamed = ""
                case "outcome":
                    self._show_outcome(item, streamed)

    def _show_outcome(self, outcome: Item, streamed: str) -> None:
        answer = str(outcome.get("text") or "")
        if answer.startswith(streamed):
            self._write(answer[len(streamed) :])
        elif answer:
            # A stage changed the text on its way out: what was shown is not what was said.
            self._note(text("command.chat_again"))
            self._write(answer)
        self._close_line()
        error = error_of(outcome)
        if error is not None:
            self._error(error)
        elif outcome["outcome"] != "answer":
            self._note(text(f"command.chat_{outcome['outcome']}"))

    async def _stop(self) -> None:
        try:
            stopped = await self._connection.stop()
        except (HomeAgentError, OSError) as error:
            self._note(text("command.error", message=error))
            return
        if not stopped:
            self._note(text("command.chat_nothing_to_stop"))

    def _take_output(self, output: Item) -> None:
        """Take what the agent said by itself, in the listener's thread; shown now or when the answer is at its end."""
        self._outputs.append(output)
        if self._is_asking_person:
            import readline

            if self._show_outputs():
                self._console.file.write(_PROMPT + readline.get_line_buffer())
                self._console.file.flush()

    def _show_outputs(self) -> bool:
        """Show what waits, but for answers to what was asked here: those have been shown."""
        with self._showing:
            waiting = [self._outputs.popleft() for _ in range(len(self._outputs))]
            shown = [output for output in waiting if output.get("turn_id") not in self._asked]
            for output in shown:
                self._console.file.write(f"\r\x1b[K{without_controls(str(output.get('text') or ''))}\n")
            self._console.file.flush()
        return bool(shown)

    def _write(self, words: str) -> None:
        if words:
            self._console.print(without_controls(words), end="", markup=False, soft_wrap=True)
            self._console.file.flush()
            self._line_is_open = not words.endswith("\n")

    def _close_line(self) -> None:
        if self._line_is_open:
            self._console.print()
            self._line_is_open = False

    def _note(self, words: str) -> None:
        self._close_line()
        self._console.print(words, style="dim", markup=False, soft_wrap=True)

    def _error(self, error: HomeAgentError) -> None:
        self._close_line()
        self._console.print(text("command.error", message=error), style="red", markup=False, soft_wrap=True)
