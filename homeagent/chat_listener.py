"""Hears what the agent says by itself, such as the answer of a timer, while a person sits at the terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from homeagent.chat_connection import ChatConnection, Item
from homeagent_sdk.errors import HomeAgentError

_AGAIN_S = 2.0


class ChatListener:
    """Listens in a thread of its own, since the main one waits for the keyboard.

    :param connection: whose conversation is listened to, also when it changes
    :param show: takes an item of type ``output``; called in the listener's thread
    """

    def __init__(self, connection: ChatConnection, show: Callable[[Item], None]) -> None:
        self._connection = connection
        self._show = show

    def start(self) -> None:
        """Begin to listen, for as long as the process lives."""
        threading.Thread(target=lambda: asyncio.run(self._listen()), name="chat-listener", daemon=True).start()

    async def _listen(self) -> None:
        while True:
            conversation = self._connection.conversation
            listening = asyncio.create_task(self._show_outputs())
            while conversation == self._connection.conversation and not listening.done():
                await asyncio.wait({listening}, timeout=_AGAIN_S)
            if listening.done():
                # The plugin is being restarted, most likely; who types a message learns it if not.
                await asyncio.sleep(_AGAIN_S)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _show_outputs(self) -> None:
        try:
            async for item in self._connection.listen():
                if item.get("type") == "output":
                    self._show(item)
        except (HomeAgentError, OSError):
            return
