from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homeagent import chat_connection
from homeagent.chat_connection import ChatConnection
from homeagent.chat_screen import without_controls
from homeagent.launcher import preflight
from homeagent_sdk.errors import Denied, Unavailable
from homeagent_sdk.paths import DataDir, short_socket_path
from tests.homeagent.conftest import Command

Item = dict[str, Any]
ANSWER: Item = {"type": "outcome", "outcome": "answer", "text": "Hello!", "error": None, "model": "m"}
Script = Callable[[Item, Callable[[Item], None]], None]


class FakeCliPlugin:
    """Listens where the ``cli`` plugin does; what it answers to a request is decided by a script."""

    def __init__(self, data: DataDir) -> None:
        self.requests: list[Item] = []
        self.script: Script = lambda request, send: send(ANSWER)
        (data.plugin_data / "cli").mkdir(parents=True, exist_ok=True)
        self.path = data.plugin_data / "cli" / "chat.sock"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server: asyncio.Server | None = None

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def start(self) -> None:
        async def listen() -> asyncio.Server:
            with short_socket_path(self.path) as name:
                return await asyncio.start_unix_server(self._serve, name)

        self._server = self._run(listen())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                request = json.loads(line)
                self.requests.append(request)
                self.script(request, lambda item: writer.write(json.dumps(item).encode() + b"\n"))
        except ConnectionAbortedError:
            pass  # a script's way to hang up
        finally:
            writer.close()

    def stop(self) -> None:
        async def close() -> None:
            if self._server is not None:
                self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def requested(self, operation: str) -> list[Item]:
        return [request for request in list(self.requests) if request["op"] == operation]


def hang_up() -> None:
    raise ConnectionAbortedError


@pytest.fixture
def plugin(data: DataDir) -> Iterator[FakeCliPlugin]:
    fake = FakeCliPlugin(data)
    lock = preflight.lock(data)
    yield fake
    os.close(lock)
    fake.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_connection, "_FIRST_RETRY_S", 0.01)


# -- one question -----------------------------------------------------------------------------------------------------


def test_one_question_prints_the_answer_and_nothing_else(homeagent: Command, plugin: FakeCliPlugin) -> None:
    def script(request: Item, send: Callable[[Item], None]) -> None:
        send({"type": "accepted", "turn_id": "t1"})
        send({"type": "started"})
        send({"type": "delta", "text": "Hel"})
        send({"type": "tool", "tool": "clock", "status": "ok"})
        send(ANSWER)

    plugin.script = script
    plugin.start()
    ended = homeagent("chat", "-m", "hi")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "Hello!\n", "")
    (request,) = plugin.requests
    assert (request["op"], request["text"]) == ("send", "hi")


def test_questions_from_scripts_have_conversations_of_their_own_unless_one_is_named(
    homeagent: Command, plugin: FakeCliPlugin
) -> None:
    plugin.start()
    for arguments in ((), (), ("-c", "kitchen")):
        homeagent("chat", "-m", "hi", *arguments)
    names = [request["conversation"] for request in plugin.requests]
    assert names[2] == "kitchen" and len(set(names)) == 3


@pytest.mark.parametrize("arguments", [("chat", "-m", "-"), ("chat",)])
def test_the_question_may_come_from_a_pipe(
    homeagent: Command, plugin: FakeCliPlugin, arguments: tuple[str, ...]
) -> None:
    plugin.start()
    assert homeagent(*arguments, stdin="what is\nthis?").exit_code == 0
    assert plugin.requests[0]["text"] == "what is\nthis?"


def test_json_has_the_whole_outcome(homeagent: Command, plugin: FakeCliPlugin) -> None:
    def script(request: Item, send: Callable[[Item], None]) -> None:
        send({"type": "accepted", "turn_id": "t1"})
        send(ANSWER)

    plugin.script = script
    plugin.start()
    outcome = homeagent("chat", "-m", "hi", "-c", "c1", "--json").json
    assert outcome == {**ANSWER, "turn_id": "t1", "conversation": "c1"}


@pytest.mark.parametrize(
    ("outcome", "stdout", "words"),
    [
        ({**ANSWER, "outcome": "stopped", "text": "Hel"}, "Hel\n", "stopped"),
        ({**ANSWER, "outcome": "skipped", "text": ""}, "", "skipped"),
        (
            {**ANSWER, "outcome": "error", "text": "", "error": Unavailable("no source", hint="add one").to_wire()},
            "",
            "error: no source\n  add one",
        ),
    ],
)
def test_what_is_no_answer_goes_to_stderr_with_exit_code_1(
    homeagent: Command, plugin: FakeCliPlugin, outcome: Item, stdout: str, words: str
) -> None:
    plugin.script = lambda request, send: send(outcome)
    plugin.start()
    ended = homeagent("chat", "-m", "hi")
    assert (ended.exit_code, ended.stdout) == (1, stdout)
    assert words in ended.stderr


def test_a_refusal_is_told_and_not_tried_again(homeagent: Command, plugin: FakeCliPlugin) -> None:
    refusal = {"type": "error", "error": {"code": "denied", "message": "another user", "hint": None, "field": None}}
    plugin.script = lambda request, send: send(refusal)
    plugin.start()
    ended = homeagent("chat", "-m", "hi")
    assert ended.exit_code == 5 and "another user" in ended.stderr
    assert len(plugin.requests) == 1


# -- connections that break -------------------------------------------------------------------------------------------


async def collect(connection: ChatConnection) -> list[Item]:
    return [item async for item in connection.send("hi")]


async def test_a_connection_that_breaks_is_made_again_for_the_same_message(
    data: DataDir, plugin: FakeCliPlugin
) -> None:
    def script(request: Item, send: Callable[[Item], None]) -> None:
        send({"type": "delta", "text": "Hel"})
        if len(plugin.requests) == 1:
            hang_up()
        send(ANSWER)

    plugin.script = script
    await asyncio.to_thread(plugin.start)
    items = await collect(ChatConnection(data, "main"))
    assert [item["type"] for item in items] == ["delta", "reconnected", "delta", "outcome"]
    first, second = plugin.requests
    assert first["delivery_id"] == second["delivery_id"]


async def test_a_plugin_that_is_just_restarting_is_waited_for(data: DataDir, plugin: FakeCliPlugin) -> None:
    asking = asyncio.create_task(collect(ChatConnection(data, "main")))
    await asyncio.sleep(0)
    await asyncio.to_thread(plugin.start)
    assert (await asking)[-1] == ANSWER


async def test_a_plugin_that_does_not_come_back_is_given_up(data: DataDir, plugin: FakeCliPlugin) -> None:
    with pytest.raises(Unavailable, match="did not come back"):
        await collect(ChatConnection(data, "main", reconnect_within_s=0.05))


async def test_a_socket_of_somebody_else_is_denied(
    data: DataDir, plugin: FakeCliPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asyncio, "open_unix_connection", refuse)
    with pytest.raises(Denied, match=r"chat\.sock"):
        await collect(ChatConnection(data, "main"))


async def test_two_messages_are_never_taken_for_one(data: DataDir, plugin: FakeCliPlugin) -> None:
    await asyncio.to_thread(plugin.start)
    connection = ChatConnection(data, "main")
    await collect(connection)
    await collect(connection)
    assert len({request["delivery_id"] for request in plugin.requests}) == 2


async def test_stop_says_whether_something_was_stopped(data: DataDir, plugin: FakeCliPlugin) -> None:
    plugin.script = lambda request, send: send({"type": "stop", "stopped": request["conversation"] == "busy"})
    await asyncio.to_thread(plugin.start)
    assert await ChatConnection(data, "busy").stop() is True
    assert await ChatConnection(data, "idle").stop() is False


# -- a person at a terminal -------------------------------------------------------------------------------------------


def test_an_answer_cannot_move_the_cursor_or_change_the_terminal() -> None:
    assert without_controls("a\x1b]0;title\x07b\r\x9bc\td\n中") == "a]0;titlebc\td\n中"


class Terminal:
    """``homeagent chat`` in a terminal of its own."""

    def __init__(self, data: DataDir) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        environment = {**os.environ, "HOMEAGENT_DATA_DIR": str(data.root), "HOMEAGENT_LANG": "en", "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "homeagent", "chat"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.shown += os.read(self._master, 4096).decode("utf-8", "replace")
            except OSError:
                return

    def type(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def wait_for(self, words: str, count: int = 1) -> None:
        end = time.monotonic() + 15
        while self.shown.count(words) < count:
            assert time.monotonic() < end, self.shown
            time.sleep(0.01)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._master)


@pytest.fixture
def terminal(data: DataDir, plugin: FakeCliPlugin) -> Iterator[Terminal]:
    screen = Terminal(data)
    yield screen
    screen.close()


def test_a_sitting(terminal: Terminal, plugin: FakeCliPlugin) -> None:
    going_on = threading.Event()

    def script(request: Item, send: Callable[[Item], None]) -> None:
        if request["op"] == "history":
            return
        if request["op"] == "stop":
            send({"type": "stop", "stopped": True})
            going_on.set()
        elif request["text"] == "long":
            send({"type": "accepted", "turn_id": "t1"})
            send({"type": "delta", "text": "once upon"})
        else:
            send({"type": "tool", "tool": "clock", "status": "started"})
            send({"type": "delta", "text": "Hel"})
            send({"type": "reset"})
            send({"type": "delta", "text": "Hello"})
            send(ANSWER)

    plugin.script = script
    plugin.start()
    terminal.wait_for("/quit leaves")
    terminal.type("hi")
    terminal.wait_for("Hello!")
    assert "[clock …]" in terminal.shown and "(the answer begins again)" in terminal.shown
    terminal.type("/nonsense")
    terminal.wait_for("no command /nonsense")
    terminal.type("long")
    terminal.wait_for("once upon")
    terminal.type("/stop")
    assert going_on.wait(10)
    terminal.type("/quit")
    assert terminal.process.wait(10) == 0
    assert {request["conversation"] for request in plugin.requests} == {"main"}


def test_what_the_agent_says_by_itself_is_shown_and_its_answers_are_not_shown_twice(
    terminal: Terminal, plugin: FakeCliPlugin
) -> None:
    listeners: list[Callable[[Item], None]] = []

    def script(request: Item, send: Callable[[Item], None]) -> None:
        if request["op"] == "history":
            listeners.append(send)
            send({"type": "history", "conversation": "main", "turns": []})
            send({"type": "output", "text": "Look at the oven.", "turn_id": "t0"})
            return
        send({"type": "accepted", "turn_id": "t1"})
        send({"type": "delta", "text": "Hello!"})
        for listener in listeners:
            listener({"type": "output", "text": "Hello!", "turn_id": "t1"})
            listener({"type": "output", "text": "The cake too.", "turn_id": "t2"})
        send(ANSWER)

    plugin.script = script
    plugin.start()
    terminal.wait_for("Look at the oven.\r\n> ")
    terminal.type("hi")
    terminal.wait_for("The cake too.")
    assert terminal.shown.count("Hello!") == 1


def test_new_begins_another_conversation_and_ctrl_c_stops_an_answer(terminal: Terminal, plugin: FakeCliPlugin) -> None:
    def script(request: Item, send: Callable[[Item], None]) -> None:
        if request["op"] == "send":
            send({"type": "delta", "text": "and so on"})
        elif request["op"] == "stop":
            send({"type": "stop", "stopped": True})

    plugin.script = script
    plugin.start()
    terminal.wait_for("/quit leaves")
    terminal.type("/new")
    terminal.wait_for("new conversation")
    terminal.type("tell me")
    terminal.wait_for("and so on")
    os.kill(terminal.process.pid, signal.SIGINT)
    end = time.monotonic() + 10
    while not plugin.requested("stop"):
        assert time.monotonic() < end, terminal.shown
        time.sleep(0.01)
    (stop,) = plugin.requested("stop")
    assert stop["conversation"] == plugin.requested("send")[0]["conversation"] != "main"


def test_a_sitting_where_nothing_runs_ends_with_4(tmp_path: Path) -> None:
    screen = Terminal(DataDir(tmp_path / "nothing"))
    try:
        assert screen.process.wait(15) == 4
    finally:
        screen.close()
    assert "homeagent up" in screen.shown
