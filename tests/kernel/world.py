"""The kernel's turns with a real journal and real registries, on a bus in memory, among services that do as told."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from homeagent_sdk.errors import HomeAgentError, Unavailable
from homeagent_sdk.testing import LocalBus
from homeagent_sdk.testing.local_bus import LocalPeer
from kernel.channels import ChannelRegistry
from kernel.config import ConfigRegistry, config_database
from kernel.journal import Journal
from kernel.methods.persona import PersonaMethods
from kernel.methods.plugins import PluginMethods
from kernel.methods.status import StatusMethods
from kernel.methods.turns import TurnMethods
from kernel.prompt import Timelines
from kernel.prompt.persona import COMMAND, Persona
from kernel.remember import Rememberer
from kernel.sources import Sources
from kernel.stage_host import StageHost
from kernel.tools import ToolRegistry
from kernel.turns.environment import TurnEnvironment
from kernel.turns.history import load_timeline
from kernel.turns.lanes import Lanes, Slots
from kernel.turns.machine import TurnMachine
from kernel.turns.resumption import expect_unfinished

Item = dict[str, Any]
Script = Callable[[Item], AsyncIterator[Item]]
"""What the provider does with one request."""
TOOL = {"description": "does something", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}


def died(*, sent: bool = True) -> Unavailable:
    """The error of a call whose peer is gone, as the bus makes it."""
    return Unavailable("it is not there", hint="it is restarting; try again", detail={"bus": True, "sent": sent})


def says(*pieces: str, usage: Item | None = None, **more: Any) -> Script:
    """The model answers with a text."""

    async def script(request: Item) -> AsyncIterator[Item]:
        yield {"type": "start", "source": "fake", "model": "fake-model"}
        for piece in pieces:
            yield {"type": "delta", "text": piece}
        yield done("".join(pieces), usage=usage, **more)

    return script


def calls(*wanted: tuple[str, Any] | tuple[str, Any, str], text: str = "", **more: Any) -> Script:
    """The model calls tools: (name, arguments) or (name, arguments, id)."""

    async def script(request: Item) -> AsyncIterator[Item]:
        tool_calls = [
            {
                "id": call[2] if len(call) > 2 else f"c{number}",
                "name": call[0],
                "arguments": call[1] if isinstance(call[1], str) else _json(call[1]),
            }
            for number, call in enumerate(wanted)
        ]
        if text:
            yield {"type": "delta", "text": text}
        yield done(text, tool_calls=tool_calls, finish_reason="tool_calls", **more)

    return script


def fails(error: Exception, *pieces: str) -> Script:
    """The provider answers with an error, perhaps after some text."""

    async def script(request: Item) -> AsyncIterator[Item]:
        for piece in pieces:
            yield {"type": "delta", "text": piece}
        raise error

    return script


def waits(event: asyncio.Event, *pieces: str, then: str = "", started: asyncio.Event | None = None) -> Script:
    """The model says something, and the rest when the event comes."""

    async def script(request: Item) -> AsyncIterator[Item]:
        for piece in pieces:
            yield {"type": "delta", "text": piece}
        if started is not None:
            started.set()
        await event.wait()
        yield done("".join(pieces) + then)

    return script


def done(text: str, *, tool_calls: Iterable[Item] = (), usage: Item | None = None, **more: Any) -> Item:
    """The last item of an answer."""
    message = {"content": text, "reasoning": "", "tool_calls": list(tool_calls), "opaque": more.pop("opaque", None)}
    counts = usage or {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "cached_tokens": 4}
    rest = {"finish_reason": "stop", "source": "fake", "model": "fake-model", "partial": False}
    return {"type": "done", "message": message, "usage": counts, **rest, **more}


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


class FakeProvider:
    """Answers with the scripts, in order; afterwards with "ok"."""

    def __init__(self, bus: LocalBus) -> None:
        self.scripts: deque[Script] = deque()
        self.requests: list[Item] = []
        self.sources: list[Item] = [{"name": "fake", "model": "fake-model", "context_window": 32768, "state": "ready"}]
        peer = bus.peer("provider")
        peer.serve_stream("provider.chat", self._chat)
        peer.serve("provider.sources", self._sources)

    async def _chat(self, body: Item, call: Any) -> AsyncIterator[Item]:
        self.requests.append(body)
        script = self.scripts.popleft() if self.scripts else says("ok")
        async for item in script(body):
            yield item

    async def _sources(self, body: Any, call: Any) -> Item:
        return {"sources": self.sources}

    @property
    def last(self) -> list[Item]:
        """The messages of the last request."""
        messages: list[Item] = self.requests[-1]["request"]["messages"]
        return messages


class FakeMemory:
    """Keeps what it is told, recalls what the test says; a window of it has the newest events that fit.

    :ivar chosen: ids of the events that its windows have instead
    """

    def __init__(self, bus: LocalBus) -> None:
        self.events: list[Item] = []
        self.recalled: list[Item] = []
        self.hits: list[Item] = []
        self.windows: list[Item] = []
        self.chosen: list[str] | None = None
        self.archived: set[str] = set()
        self.error: HomeAgentError | None = None
        peer = bus.peer("memory")
        peer.serve("memory.window", self._window)
        peer.serve("memory.append", self._append)
        peer.serve("memory.recall", self._recall)

    async def _append(self, body: Item, call: Any) -> Item:
        if self.error is not None:
            raise self.error
        self.events.append(body["event"])
        return {"stored": True}

    async def _recall(self, body: Item, call: Any) -> Item:
        if self.error is not None:
            raise self.error
        self.recalled.append(body)
        return {"hits": self.hits, "no_record": not self.hits}

    async def _window(self, body: Item, call: Any) -> Item:
        self.windows.append(body)
        if self.error is not None:
            raise self.error
        context = [each for each in self.events if each["id"] not in {*body["keep"], *self.archived}]
        if self.chosen is not None:
            shown = [each for each in context if each["id"] in self.chosen]
        else:
            left = body["budget_tokens"] * 2 // 3 - body["keep_tokens"]
            most = body["max_events"] * 2 // 3 - len(body["keep"])
            shown = []
            for each in context[::-1][:most]:
                left -= len(each["input"]) + len(each["response"])
                if left >= 0:
                    shown.insert(0, each)
        archived = {each["id"] for each in context} - {each["id"] for each in shown}
        self.archived |= archived
        events = [
            {**each["lane"], **{key: each[key] for key in ("id", "time", "speaker")}}
            | {"text": each["input"], "reply": each["response"]}
            for each in shown
        ]
        return {"events": events, "archived": len(archived), "document": "doc-1" if archived else None}


class World:
    """One run of the kernel over a data directory; :meth:`again` is the next one.

    :param has_persona: whether the owner has chosen a persona already, and is not asked for one
    """

    def __init__(
        self,
        folder: Path,
        overrides: dict[str, Any] | None = None,
        *,
        patience_s: float = 60.0,
        has_persona: bool = True,
    ) -> None:
        self.folder = folder
        self.overrides = overrides or {}
        self.patience_s = patience_s
        self.has_persona = has_persona
        self.now: Callable[[], float] = time.time
        self.bus = LocalBus()
        self.provider = FakeProvider(self.bus)
        self.memory = FakeMemory(self.bus)
        self.web = self.bus.peer("web", "builtin")
        self.principals = {"owner", "anna"}
        self._tells_memory = True

    async def start(self, *, is_open: bool = True, tells_memory: bool = True) -> World:
        """Open the databases and take up what is unfinished."""
        self._assemble(await self._open())
        await expect_unfinished(self.journal, self.machine, self.lanes)
        if tells_memory:
            self.rememberer.start()
        if is_open:
            self.lanes.open()
        return self

    async def _open(self) -> ConfigRegistry:
        self._database = config_database(self.folder / "config.db")
        await self._database.open()
        config = ConfigRegistry(self._database, self.overrides)
        await config.load()
        self.persona = Persona(self._database, config, wall_clock=lambda: self.now())
        await self.persona.load()
        if self.has_persona:
            await self.persona.reset(COMMAND)
        self.journal = Journal(self.folder / "journal.db")
        await self.journal.open()
        return config

    def _assemble(self, config: ConfigRegistry) -> None:
        self.peer = self.bus.peer("kernel", "kernel")
        self.config, self.tools, self.stages, self.channels = config, ToolRegistry(), StageHost(), ChannelRegistry()
        self.plugins = PluginMethods(config, self.tools, self.stages, self.channels)
        self.sources = Sources(self.peer)
        self.rememberer = Rememberer(self.peer, self.journal.unremembered, self.journal.mark_remembered)
        self.environment = TurnEnvironment(
            bus=self.peer,
            config=config,
            journal=self.journal,
            stages=self.stages,
            tools=self.tools,
            channels=self.channels,
            timelines=Timelines(self._timeline),
            sources=self.sources,
            rememberer=self.rememberer,
            persona=self.persona,
            wall_clock=time.time,
            absent_tools=self.plugins.absent_tools,
            patience_s=self.patience_s,
        )
        self.machine = TurnMachine(self.environment)
        self.slots = Slots(lambda: config.int("core.agent.max_concurrent_turns"))
        self.lanes = Lanes(
            self.machine.run, self.machine.withdraw, self.slots, lambda: config.int("core.agent.queue_limit")
        )
        self.plugins.serve(self.peer)
        PersonaMethods(self.persona).serve(self.peer)
        self.methods = TurnMethods(
            self.peer, self.journal, self.lanes, self.machine, self.sources, self.principals.__contains__
        )
        self.methods.serve()
        self.peer_states = {"memory": "running", "provider": "running", "host": "running"}
        StatusMethods(self.peer, self.journal, self.lanes, self.slots, self.channels, self.peer_states.get).serve(
            self.peer
        )

    async def _timeline(self, channel: str, conversation: str, principal: str) -> Any:
        return await load_timeline(self.journal, (channel, conversation, principal), 30)

    # -- ends ---------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop on purpose, as SIGTERM does."""
        self.machine.is_closing = True
        await self.lanes.close()
        await self.rememberer.stop()
        await self.journal.close()
        await self._database.close()

    async def crash(self) -> None:
        """Die without writing anything more."""
        await self.journal.close()
        await self.stop()

    async def again(self, *, is_open: bool = True) -> World:
        """Start a kernel on what this one left; plugins have to register anew."""
        successor = World(self.folder, self.overrides, patience_s=self.patience_s, has_persona=False)
        return await successor.start(is_open=is_open)

    # -- what a channel does ------------------------------------------------------------------------------------------

    async def submit(self, text: str = "hello", peer: LocalPeer | None = None, **more: Any) -> str:
        """Send an input; returns the turn's id."""
        return str((await self.submit_raw(text, peer, **more))["turn_id"])

    async def submit_raw(self, text: Any = "hello", peer: LocalPeer | None = None, **more: Any) -> Item:
        body = {"channel": "webui", "conversation": "c1", "principal": "owner", "text": text, **more}
        answer: Item = await (peer or self.web).call("kernel.submit", body)
        return answer

    async def follow(self, turn_id: str, **more: Any) -> list[Item]:
        """Follow a turn to its end."""
        async with asyncio.timeout(20):
            return [item async for item in self.web.stream("kernel.follow", {"turn_id": turn_id, **more})]

    async def ask(self, text: str = "hello", **more: Any) -> Item:
        """Send an input and return its outcome."""
        return (await self.follow(await self.submit(text, **more)))[-1]

    async def row(self, turn_id: str) -> Any:
        """The turn as the journal has it."""
        return await self.journal.get(turn_id)

    async def told(self, count: int = 1) -> list[Item]:
        """Wait until the memory was told of so many turns."""
        await until(lambda: len(self.memory.events) >= count)
        return self.memory.events

    def published(self, topic: str) -> list[Item]:
        """The payloads of all events of a topic."""
        return [event.payload for event in self.bus.events if event.topic == topic]

    # -- plugins ------------------------------------------------------------------------------------------------------

    async def plugin(self, name: str, tier: str = "builtin", **parts: Any) -> FakePlugin:
        """Add a plugin; ``parts`` are those of ``kernel.register``."""
        plugin = FakePlugin(self, name, tier)
        await plugin.register(**parts)
        return plugin


class FakePlugin:
    """A plugin whose tools, handlers and channels are plain functions of the test."""

    def __init__(self, world: World, name: str, tier: str) -> None:
        self.name = name
        self.peer = world.bus.peer(name, tier)
        self.world = world
        self.calls: list[Item] = []
        self.stage_calls: list[Item] = []
        self.sent: list[Item] = []
        self.on_tool: Callable[[Item], Awaitable[Any]] = self._echo
        self.on_stage: Callable[[Item], Awaitable[Any]] = self._nothing
        self.on_output: Callable[[Item], Awaitable[Any]] = self._ok
        self.peer.serve(f"{name}.tool", self._tool)
        self.peer.serve(f"{name}.stage", self._stage)
        self.peer.serve(f"{name}.output", self._output)

    async def register(self, **parts: Any) -> None:
        await self.peer.call("kernel.register", {"generation": 0, **parts})

    def die(self) -> None:
        """Vanish, as a crash does: the bus forgets it, and the kernel what it had registered."""
        self.world.bus.peers.pop(self.name, None)
        self.world.plugins.forget(self.name, 0)

    async def _tool(self, body: Item, call: Any) -> Any:
        self.calls.append(body)
        return await self.on_tool(body)

    async def _stage(self, body: Item, call: Any) -> Any:
        self.stage_calls.append(body)
        return await self.on_stage(body)

    async def _output(self, body: Item, call: Any) -> Any:
        self.sent.append(body)
        return await self.on_output(body)

    async def _echo(self, body: Item) -> Item:
        return {"content": body["arguments"].get("text", "done"), "is_error": False}

    async def _nothing(self, body: Item) -> Item:
        return {"changes": {}, "response": None}

    async def _ok(self, body: Item) -> Item:
        return {"status": "ok", "note": ""}


def tool(name: str, **flags: Any) -> Item:
    """A tool as it is registered."""
    return {"name": name, **TOOL, "flags": flags}


def stage(name: str, *changes: str, **more: Any) -> Item:
    """A handler as it is registered."""
    return {"stage": name, "changes": list(changes), **more}


async def half_said(world: World, text: str = "long story") -> tuple[str, asyncio.Event]:
    """Begin a turn whose model says half of it; returns the turn, and what lets it say the rest."""
    never, started = asyncio.Event(), asyncio.Event()
    world.provider.scripts.append(waits(never, "half", started=started))
    turn_id = await world.submit(text)
    await started.wait()
    return turn_id, never


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for what another task does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)


async def stays(condition: Callable[[], Any], turns_of_the_loop: int = 50) -> bool:
    """Give everything that is ready its chance, and tell whether the condition holds all the time."""
    for _ in range(turns_of_the_loop):
        if not condition():
            return False
        await asyncio.sleep(0)
    return True


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task of the test and wait for it."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
