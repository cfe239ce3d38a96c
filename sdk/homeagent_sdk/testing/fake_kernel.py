"""A kernel for the tests of a plugin: it records, answers as told, and calls the plugin back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from homeagent_sdk.bus.abc import BusPeer, CallContext
from homeagent_sdk.errors import Denied, HomeAgentError, Invalid, NotFound
from homeagent_sdk.plugin.manifest import Manifest, read_manifest
from homeagent_sdk.plugin.plugin import Plugin
from homeagent_sdk.plugin.runtime import PluginRuntime
from homeagent_sdk.testing.local_bus import LocalBus

Script = Callable[[dict[str, Any]], list[dict[str, Any]]]


def outcome(text: str = "", kind: str = "answer", **extra: Any) -> dict[str, Any]:
    """Return an outcome item as ``kernel.follow`` ends with."""
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"), 0)
    item = {"type": "outcome", "outcome": kind, "text": text, "error": None, "usage": usage}
    return {**item, "model": "fake", "finish_reason": "stop", **extra}


def answers(text: str) -> list[dict[str, Any]]:
    """Return the items of a turn that is answered with ``text``."""
    return [{"type": "started"}, {"type": "delta", "text": text}, outcome(text)]


class FakeKernel:
    """Serves the part of ``kernel.*`` that plugins use.

    ``submissions`` are the inputs that were accepted, in order; ``registered`` what each plugin registered last.
    ``script`` makes the items of a turn from its submission (default: an answer that repeats the text). What is put
    into ``follow_errors`` ends the next follows before their outcome, one each; ``submit_errors`` refuse the next
    submits. ``settings`` overrides defaults: plugin → key → value. ``keys`` maps a key to what authenticate answers.

    :param bus: the bus in memory to live on; default: a new one
    :param peer: another bus' peer to serve on instead, of tier kernel
    """

    def __init__(self, bus: LocalBus | None = None, peer: BusPeer | None = None) -> None:
        self.bus = bus or LocalBus()
        self.peer: BusPeer = peer or self.bus.peer("kernel", tier="kernel")
        self.definitions: dict[str, list[dict[str, Any]]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.registered: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {
            "ha-owner": {"principal": "owner", "name": "Owner", "role": "owner"},
            "ha-member": {"principal": "member", "name": "Member", "role": "member"},
        }
        self.submissions: list[dict[str, Any]] = []
        self.stops: list[dict[str, Any]] = []
        self.script: Script = lambda submission: answers(submission["text"])
        self.follow_errors: list[HomeAgentError] = []
        self.submit_errors: list[HomeAgentError] = []
        self.models: list[str] = ["fake"]
        self._has_registered = asyncio.Condition()
        self._turns: dict[str, dict[str, Any]] = {}
        self._delivered: dict[tuple[str, str], str] = {}
        for verb in ("define_settings", "register", "authenticate", "submit", "stop", "history", "conversations"):
            self.peer.serve(f"kernel.{verb}", getattr(self, f"_{verb}"))
        self.peer.serve("kernel.status", self._status)
        self.peer.serve_stream("kernel.follow", self._follow)
        self._serve_sources()

    @asynccontextmanager
    async def run(
        self, plugin: Plugin, manifest: Manifest | Path, data_dir: Path, tier: str = "builtin"
    ) -> AsyncIterator[PluginRuntime]:
        """Start a plugin on this kernel's bus, and stop it at the end.

        :param manifest: the manifest, or the plugin's folder
        """
        read = await asyncio.to_thread(read_manifest, manifest) if isinstance(manifest, Path) else manifest
        runtime = PluginRuntime(plugin, read, data_dir, self.bus.peer(read.name, tier))
        await runtime.start()
        try:
            yield runtime
        finally:
            await runtime.stop()

    async def restart(self) -> None:
        """Forget all registrations and welcome every peer again, as a new epoch of the kernel does."""
        self.registered.clear()
        self.bus.epoch = f"{self.bus.epoch}+"
        for peer in list(self.bus.peers.values()):
            await peer.start()

    async def wait_registered(self, plugin: str, timeout_s: float = 5.0) -> dict[str, Any]:
        """Wait until a plugin has registered, and return what; after :meth:`restart` that is anew."""
        async with asyncio.timeout(timeout_s), self._has_registered:
            await self._has_registered.wait_for(lambda: plugin in self.registered)
        return self.registered[plugin]

    async def set_setting(self, plugin: str, key: str, value: Any) -> None:
        """Change a plugin's setting and tell everyone."""
        self.settings.setdefault(plugin, {})[key] = value
        await self.peer.publish("config.changed", {"keys": [f"plugin.{plugin}.{key}"]})

    async def call_tool(
        self, plugin: str, tool: str, arguments: dict[str, Any] | None = None, **context: Any
    ) -> dict[str, Any]:
        """Call a tool as the kernel does; the context has defaults (channel test, conversation c1, the owner)."""
        body = {"tool": tool, "arguments": arguments or {}, "context": _context(context)}
        answer: dict[str, Any] = await self.peer.call(f"{plugin}.tool", body)
        return answer

    async def run_stage(self, plugin: str, stage: str, fields: dict[str, Any], **context: Any) -> dict[str, Any]:
        """Run a plugin's handler of a stage."""
        body = {"stage": stage, "fields": fields, "context": _context(context)}
        answer: dict[str, Any] = await self.peer.call(f"{plugin}.stage", body)
        return answer

    async def send_output(self, plugin: str, channel: str, payload: Any, **more: Any) -> dict[str, Any]:
        """Send a message over a plugin's output channel; ``output_id`` and the rest have defaults."""
        body = {"output_id": "o1", "channel": channel, "payload": payload, "type": "text", "meta": {}}
        defaults = {"conversation": "c1", "principal": "owner"}
        answer: dict[str, Any] = await self.peer.call(f"{plugin}.output", {**body, **defaults, **more})
        return answer

    async def _define_settings(self, body: Any, call: CallContext) -> dict[str, Any]:
        plugin = body["plugin"]
        if plugin != call.origin.name:
            raise Denied(f"{call.origin.name} cannot define settings of {plugin}")
        self.definitions[plugin] = body["definitions"]
        defaults = {definition["key"]: definition["default"] for definition in body["definitions"]}
        return {"settings": {**defaults, **self.settings.get(plugin, {})}}

    async def _register(self, body: Any, call: CallContext) -> dict[str, Any]:
        async with self._has_registered:
            self.registered[call.origin.name] = body
            self._has_registered.notify_all()
        return {}

    async def _authenticate(self, body: Any, call: CallContext) -> dict[str, Any]:
        if body["key"] not in self.keys:
            raise Denied("the key is not known", hint="homeagent key new makes one")
        return self.keys[body["key"]]

    async def _submit(self, body: Any, call: CallContext) -> dict[str, Any]:
        if self.submit_errors:
            raise self.submit_errors.pop(0)
        if not body["text"].strip():
            raise Invalid("the text is empty", field="text")
        if body["model"] not in (None, "auto", "homeagent", *self.models):
            raise NotFound(f"the model {body['model']} is not configured", field="model")
        identity = (body["channel"], body["delivery_id"])
        if identity in self._delivered:
            return {"turn_id": self._delivered[identity], "status": "duplicate"}
        turn_id = f"t{len(self._turns) + 1}"
        self._delivered[identity] = turn_id
        self.submissions.append(body)
        self._turns[turn_id] = {**body, "turn_id": turn_id, "time": time.time(), "items": self.script(body)}
        return {"turn_id": turn_id, "status": "accepted"}

    async def _follow(self, body: Any, call: CallContext) -> AsyncIterator[Any]:
        turn = self._turns.get(body["turn_id"])
        if turn is None:
            raise NotFound(f"there is no turn {body['turn_id']}")
        for item in turn["items"]:
            if item["type"] == "outcome" and self.follow_errors:
                raise self.follow_errors.pop(0)
            yield item

    async def _stop(self, body: Any, call: CallContext) -> dict[str, Any]:
        self.stops.append(body)
        return {"stopped": any(turn["conversation"] == body["conversation"] for turn in self._turns.values())}

    def _lane_turns(self, body: Any) -> list[dict[str, Any]]:
        wanted = {key: body[key] for key in ("channel", "principal", "conversation") if key in body}
        return [turn for turn in self._turns.values() if all(turn[key] == value for key, value in wanted.items())]

    async def _history(self, body: Any, call: CallContext) -> dict[str, Any]:
        turns = []
        for turn in self._lane_turns(body)[-body.get("limit", 50) :]:
            last = turn["items"][-1]
            entry = {key: turn[key] for key in ("turn_id", "time", "text")}
            turns.append({**entry, "answer": last.get("text"), "outcome": last.get("outcome")})
        return {"turns": turns}

    async def _conversations(self, body: Any, call: CallContext) -> dict[str, Any]:
        newest: dict[str, dict[str, Any]] = {}
        for turn in self._lane_turns(body):
            known = newest.pop(turn["conversation"], {"title": turn["text"][:60]})
            newest[turn["conversation"]] = {
                "conversation": turn["conversation"],
                "title": known["title"],
                "last_time": turn["time"],
            }
        return {"conversations": list(reversed(newest.values()))[: body.get("limit", 50)]}

    async def _status(self, body: Any, call: CallContext) -> dict[str, Any]:
        services = [{"name": name, "state": "running", "detail": ""} for name in ("memory", "provider", "host")]
        plugins = [{"name": name, "state": "running", "detail": ""} for name in self.registered]
        turns = {"running": 0, "waiting": 0, "finished": len(self._turns)}
        status = {"version": "0.1.0", "epoch": self.bus.epoch, "started_at": 0.0, "ready": True}
        return {**status, "services": services, "plugins": plugins, "turns": turns, "channels": []}

    def _serve_sources(self) -> None:
        provider = self.bus.peer("provider")

        async def sources(body: Any, call: CallContext) -> dict[str, Any]:
            return {"sources": [_source(model) for model in self.models]}

        provider.serve("provider.sources", sources)


def _source(model: str) -> dict[str, Any]:
    names = {"name": model, "model": model, "adapter": "openai", "base_url": "http://127.0.0.1:1/v1"}
    able = {"context_window": 8192, "vision": False, "audio": False, "tools": True}
    return {**names, **able, "state": "ready", "reason": "", "embedded": False, "key_set": True}


def _context(given: dict[str, Any]) -> dict[str, Any]:
    defaults = {"turn_id": "t1", "call_id": "call-1", "channel": "test", "conversation": "c1", "principal": "owner"}
    return {**defaults, "speaker": None, **given}
