"""The terminal's way to the agent: ``plugin_data/cli/chat.sock``, a Unix socket with lines of JSON both ways.

Whoever runs as the user of the agent may connect, without a key, and is its owner. A path that is too long for a socket
is reached with :func:`homeagent_sdk.paths.short_socket_path`. One line is one JSON object in UTF-8, at most 1 MiB.

From the client::

    {"op": "send", "conversation": "main", "text": "hello"}      optional: "no_memory": true, "delivery_id": "d1"
    {"op": "stop", "conversation": "main"}
    {"op": "history", "conversation": "main"}
    {"op": "follow", "turn_id": "..."}

Any request may have an ``id``; it is repeated on each line that answers it. A ``send`` that is repeated with the same
``delivery_id`` is the same turn. Requests are taken one after another; up to 16 turns are followed at the same time.

To the client::

    {"type": "accepted", "turn_id": "...", "status": "accepted" | "duplicate"}           send: the input is on disk
    {"type": "started" | "delta" | "reasoning" | "tool" | "reset", "turn_id": "...", …}  send, follow: as it happens
    {"type": "outcome", "turn_id": "...", "outcome": "answer", "text": "...", …}         send, follow: the last line
    {"type": "stop", "stopped": true}
    {"type": "history", "conversation": "main", "turns": [{"turn_id", "time", "text", "answer", "outcome"}, …]}
    {"type": "output", "conversation": "main", "text": "...", "output_id": "...", "turn_id": "..."}
    {"type": "error", "error": {"code", "message", "hint", "field"}}                     the connection goes on

``delta`` and ``reasoning`` have ``text``; ``tool`` has ``tool`` and ``status`` (started, ok, failed); after ``reset``
the text so far is to be forgotten, it comes again. ``output`` is what the agent says without being asked, a timer's
answer for example, in a conversation that the client has named in this connection; ``turn_id`` is the turn that it is
the answer of.
"""

from __future__ import annotations

from homeagent_sdk.plugin import OutputFlags, OutputMessage, Plugin, Receipt

from .connection import CHANNEL
from .socket_server import SocketServer


def build() -> Plugin:
    """Return the plugin, with a state of its own."""
    plugin = Plugin()
    servers: list[SocketServer] = []

    @plugin.on_start
    async def start() -> None:
        server = SocketServer(plugin)
        await server.start()
        servers.append(server)

    @plugin.on_stop
    async def stop() -> None:
        while servers:
            await servers.pop().stop()

    @plugin.output_channel(CHANNEL, flags=OutputFlags.TEXT, synchronous=True)
    async def show(message: OutputMessage) -> Receipt:
        """The terminal. Shows the text to whoever has the conversation open there."""
        item = {
            "type": "output",
            "conversation": message.conversation,
            "text": str(message.payload),
            "output_id": message.output_id,
            "turn_id": str(message.meta.get("turn_id") or message.output_id),
        }
        seen = any([server.push(message.conversation, item) for server in servers])
        return Receipt("ok") if seen else Receipt("unconfirmed", "no terminal is open; it is in the history")

    return plugin


plugin = build()
