"""The plugin: a web server that starts and stops with it, and the output channel of the chat page."""

from __future__ import annotations

from homeagent_sdk.bus.abc import Event
from homeagent_sdk.plugin import OutputFlags, OutputMessage, Plugin, Receipt

from .agent import API_CHANNEL, PAGE_CHANNEL, own_conversation
from .server import Server


def build() -> Plugin:
    """Return the plugin, with a state of its own."""
    plugin = Plugin()
    servers: list[Server] = []

    @plugin.on_start
    async def start() -> None:
        server = Server(plugin)
        await server.start()
        servers.append(server)

    @plugin.on_stop
    async def stop() -> None:
        while servers:
            await servers.pop().stop()

    @plugin.on_event("config.changed")
    async def on_config_changed(event: Event) -> None:
        keys = event.payload.get("keys", []) if isinstance(event.payload, dict) else []
        if event.topic == "config.changed" and not any(key.startswith("core.llm.") for key in keys):
            return
        for server in servers:
            server.agent.forget_sources()
            server.pages.push({"type": "state"})

    @plugin.output_channel(PAGE_CHANNEL, flags=OutputFlags.TEXT, synchronous=True)
    async def show(message: OutputMessage) -> Receipt:
        """The chat page in the browser. Shows the text in the conversation, at once if the page is open."""
        return push("output", message)

    @plugin.output_channel(API_CHANNEL, flags=OutputFlags.TEXT, synchronous=True)
    async def notify(message: OutputMessage) -> Receipt:
        """Programs that use the OpenAI-compatible API. They cannot be called; the person's open pages show the text."""
        return push("notice", message)

    def push(kind: str, message: OutputMessage) -> Receipt:
        conversation = own_conversation(message.principal, message.conversation)
        if conversation is None:
            return Receipt("failed", "the conversation is not this person's")
        event = {
            "type": kind,
            "output_id": message.output_id,
            "conversation": conversation,
            "text": str(message.payload),
            "turn_id": str(message.meta.get("turn_id") or message.output_id),
        }
        is_seen = any(server.pages.push(event, message.principal) for server in servers)
        return Receipt("ok") if is_seen else Receipt("unconfirmed", "no page is open; it is in the history")

    plugin.input_channel(API_CHANNEL, description="Programs that use the OpenAI-compatible API")
    return plugin


plugin = build()
