"""What works beside the answering of turns: imports, forgetting, the log of conversations; put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from homeagent_sdk.bus.abc import BusPeer
from memory_service.conversation_log import ConversationLog
from memory_service.forgetting import Forgetting
from memory_service.importing import Importing
from memory_service.operator_methods import OperatorMethods
from memory_service.settings import Settings
from memory_service.store.abc import Store


class Operating:
    """The operator's side of the memory. Use it as a context while the service runs, and :meth:`serve` it before.

    :param folder: the memory's folder; the log lies in ``conversations`` in it
    """

    def __init__(self, peer: BusPeer, store: Store, folder: Path) -> None:
        self._stored: list[Callable[[], None]] = []
        self._log = ConversationLog(store.log, folder / "conversations")
        self._forgetting = Forgetting(peer, store, self._log)
        self._settings = Settings(peer)
        self._settings.on_change(self._log.apply)
        self._methods = OperatorMethods(peer, store, Importing(store, self._imported), self._forgetting)
        self._finishing: asyncio.Task[None] | None = None

    def serve(self) -> None:
        """Register the methods; call it before the peer starts."""
        self._settings.serve()
        self._methods.serve()

    def on_imported(self, told: Callable[[], None]) -> None:
        """Call ``told`` whenever new events were imported."""
        self._stored.append(told)

    def on_forgotten(self, told: Callable[[str, Collection[int]], None]) -> None:
        """Call ``told`` with a kind (event, document, relation) and the numbers of what was forgotten."""
        self._forgetting.on_forgotten(told)

    def wake(self) -> None:
        """There are new events: the log has something to write."""
        self._log.wake()

    async def __aenter__(self) -> Self:
        """Begin to work in the background."""
        self._log.start()
        self._finishing = asyncio.create_task(self._forgetting.finish(), name="forgetting")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; what is left is done after the next start."""
        await self._log.stop()
        if self._finishing is not None:
            self._finishing.cancel()
            await asyncio.gather(self._finishing, return_exceptions=True)

    def _imported(self) -> None:
        self._log.wake()
        for told in self._stored:
            told()
