"""One client of the socket: takes its requests, and sends it what it asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import HomeAgentError, Internal, Invalid, Overloaded
from homeagent_sdk.plugin import Plugin, Turn

from .lines import format_line, parse_line, read_lines

CHANNEL = "cli"
OWNER = "owner"
HISTORY_TURNS = 50
LONGEST_CONVERSATION = 200
TURNS_AT_ONCE = 16
"""How many turns one client may follow at the same time."""

_WAITING_LINES = 256
_CONVERSATIONS = 64
_WRITE_TIME_S = 30.0
_CLOSE_TIME_S = 2.0

Operation = Callable[["Connection", dict[str, Any]], Awaitable[None]]


class Connection:
    """One client.

    Lines that it asked for wait until it reads them, which slows their turn down; it has 30 s for each. Lines that it
    did not ask for do not wait: a client whose 256 places are taken is cut off, and finds them in the history.
    """

    def __init__(self, plugin: Plugin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._plugin = plugin
        self._reader = reader
        self._writer = writer
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_LINES)
        self._conversations: OrderedDict[str, None] = OrderedDict()
        self._followers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve the client until it goes."""
        writing = asyncio.create_task(self._write_lines())
        answering = asyncio.create_task(self._answer_all())
        try:
            await asyncio.wait({writing, answering}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(writing, answering)

    async def _answer_all(self) -> None:
        """Answer everything, also to a client that has ended its own side and still reads, as ``nc`` does."""
        await self._read_requests()
        while self._followers:
            await asyncio.wait(set(self._followers))
        await self._lines.join()

    async def _end(self, *tasks: asyncio.Task[None]) -> None:
        running = [*tasks, *self._followers]
        for task in running:
            task.cancel()
        self._writer.close()
        try:
            async with asyncio.timeout(_CLOSE_TIME_S):
                await asyncio.gather(*running, return_exceptions=True)
                await self._writer.wait_closed()
        except (TimeoutError, ConnectionError):
            self._plugin.log.info("a client went without reading to the end")
        finally:
            self._writer.transport.abort()

    def push(self, conversation: str, item: dict[str, Any]) -> bool:
        """Send something that nobody asked for, if the client takes part in the conversation; false if it does not."""
        if conversation not in self._conversations:
            return False
        try:
            self._lines.put_nowait(format_line(item))
        except asyncio.QueueFull:
            self._plugin.log.warning("a client reads too slowly and is cut off", waiting=_WAITING_LINES)
            self._writer.transport.abort()
            return False
        return True

    async def _write_lines(self) -> None:
        while True:
            line = await self._lines.get()
            try:
                self._writer.write(line)
                async with asyncio.timeout(_WRITE_TIME_S):
                    await self._writer.drain()
            except (TimeoutError, ConnectionError):
                return
            finally:
                self._lines.task_done()

    async def _read_requests(self) -> None:
        try:
            async for line in read_lines(self._reader):
                if isinstance(line, Invalid):
                    await self._send_error(line, {})
                elif line.strip():
                    await self._answer(line)
        except ConnectionError:
            return

    async def _answer(self, line: bytes) -> None:
        request: dict[str, Any] = {}
        try:
            request = parse_line(line)
            operation = _OPERATIONS.get(str(request.get("op")))
            if operation is None:
                known = ", ".join(_OPERATIONS)
                raise Invalid(text("cli.unknown_op", op=str(request.get("op"))[:40], known=known), field="op")
            await operation(self, request)
        except HomeAgentError as error:
            await self._send_error(error, request)
        except Exception:
            self._plugin.log.exception("a request failed", op=request.get("op"))
            await self._send_error(Internal(text("cli.unforeseen")), request)

    async def send_text(self, request: dict[str, Any]) -> None:
        """``send``: put a text to the agent, and follow the turn."""
        self._check_room()
        conversation = self._conversation(request)
        turn = await self._plugin.submit(
            channel=CHANNEL,
            conversation=conversation,
            text=_text(request, "text"),
            principal=OWNER,
            delivery_id=_text(request, "delivery_id") if "delivery_id" in request else None,
            no_memory=request.get("no_memory") is True,
        )
        await self._send({"type": "accepted", "turn_id": turn.turn_id, "status": turn.status}, request)
        self._follow(turn, request)

    async def stop_lane(self, request: dict[str, Any]) -> None:
        """``stop``: stop what runs in a conversation."""
        body = {"channel": CHANNEL, "conversation": self._conversation(request)}
        answer = await self._plugin.bus.call("kernel.stop", body, idempotent=True)
        await self._send({"type": "stop", "stopped": answer["stopped"]}, request)

    async def give_history(self, request: dict[str, Any]) -> None:
        """``history``: give the last turns of a conversation."""
        conversation = self._conversation(request)
        body = {"channel": CHANNEL, "conversation": conversation, "principal": OWNER, "limit": HISTORY_TURNS}
        answer = await self._plugin.bus.call("kernel.history", body, idempotent=True)
        await self._send({"type": "history", "conversation": conversation, "turns": answer["turns"]}, request)

    async def follow_turn(self, request: dict[str, Any]) -> None:
        """``follow``: follow a turn from its beginning, whether it has ended or not."""
        self._check_room()
        self._follow(self._plugin.turn(_text(request, "turn_id")), request)

    def _follow(self, turn: Turn, request: dict[str, Any]) -> None:
        follower = asyncio.create_task(self._pass_on(turn, request))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _pass_on(self, turn: Turn, request: dict[str, Any]) -> None:
        try:
            async for item in turn.follow():
                await self._send({**item, "turn_id": turn.turn_id}, request)
        except HomeAgentError as error:
            await self._send_error(error, request, turn_id=turn.turn_id)

    async def _send(self, item: dict[str, Any], request: dict[str, Any]) -> None:
        await self._lines.put(format_line(item if "id" not in request else {**item, "id": request["id"]}))

    async def _send_error(self, error: HomeAgentError, request: dict[str, Any], **more: str) -> None:
        told = {"code": error.code, "message": error.message, "hint": error.hint, "field": error.field}
        await self._send({"type": "error", "error": told, **more}, request)

    def _check_room(self) -> None:
        if len(self._followers) >= TURNS_AT_ONCE:
            raise Overloaded(text("cli.too_many_turns", limit=TURNS_AT_ONCE), hint=text("cli.too_many_turns_hint"))

    def _conversation(self, request: dict[str, Any]) -> str:
        """Return the conversation of a request; from now on the client hears what comes there by itself."""
        name = _text(request, "conversation")
        if len(name) > LONGEST_CONVERSATION or not name.isprintable():
            limit = LONGEST_CONVERSATION
            raise Invalid(text("cli.bad_conversation", limit=limit), field="conversation")
        self._conversations[name] = None
        self._conversations.move_to_end(name)
        if len(self._conversations) > _CONVERSATIONS:
            self._conversations.popitem(last=False)
        return name


def _text(request: dict[str, Any], field: str) -> str:
    value = request.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Invalid(text("cli.text_needed", field=field), field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(text("cli.bad_text", field=field), field=field) from error
    return value


_OPERATIONS: dict[str, Operation] = {
    "send": Connection.send_text,
    "stop": Connection.stop_lane,
    "history": Connection.give_history,
    "follow": Connection.follow_turn,
}
