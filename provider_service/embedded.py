"""The embedded model, seen from the service: it runs while there is no other source, and comes back when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from homeagent_sdk.process import PARENT_ENVIRONMENT, child_environment
from homeagent_sdk.secrets import DESCRIPTOR_VARIABLE, pass_to_child
from provider_service.embedded_model import KEY_NAME, MODEL_NAME, find_weights
from provider_service.source import Source

NAME = "embedded"
CONTEXT_WINDOW = 4096
MAX_ANSWER_TOKENS = 512
"""Such a small model does not always find an end."""

START_LIMIT_S = 90.0
STOP_WAIT_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MAX_THREADS = 4

_log = structlog.get_logger("provider_service.embedded")


class EmbeddedModel:
    """The child process that runs the embedded model.

    :param changed: called whenever :attr:`source` or :attr:`is_starting` changes
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.key = secrets.token_urlsafe(24)
        self.source: Source | None = None
        """The source that it is, while it answers."""
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[str] = deque(maxlen=20)
        self._is_ready = asyncio.Event()

    @staticmethod
    async def is_installed() -> bool:
        """Whether its runtime and weights are installed."""
        return await asyncio.to_thread(find_weights) is not None

    @property
    def is_running(self) -> bool:
        """Whether it has been started, be it ready or not."""
        return self._task is not None

    @property
    def process_id(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def as_source(self) -> Source:
        """Return it as a source without an address, to be listed while it starts."""
        return self.source or _source("")

    def start(self) -> None:
        """Start it, and start it again whenever it ends; safe to call when it runs."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_running(), name="embedded-model")

    async def stop(self) -> None:
        """Stop it; safe to call when it does not run."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        self._set_source(None)

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until it answers; return whether it does."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_ready.wait()
        except TimeoutError:
            return False
        return True

    def _set_source(self, source: Source | None) -> None:
        self.source = source
        if source is None:
            self._is_ready.clear()
        else:
            self._is_ready.set()
        self._changed()

    async def _keep_running(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            self._set_source(None)
            was_ready = await self._run_once()
            pause_s = FIRST_PAUSE_S if was_ready else min(pause_s * 2, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> bool:
        """Run the process until it ends; return whether it was ever ready."""
        self._last_words.clear()
        try:
            process = self._process = await self._spawn()
        except OSError as error:
            _log.error("cannot start the embedded model", problem=str(error))
            return False
        listening = asyncio.create_task(self._listen(process))
        try:
            url = await self._address(process)
            if url is not None:
                _log.info("embedded model is ready", pid=process.pid)
                self._set_source(_source(f"{url}/v1"))
                await process.wait()
            return url is not None
        finally:
            await self._end(process)
            listening.cancel()
            _log.info("embedded model ended", code=process.returncode, last_words=list(self._last_words)[-3:])

    async def _address(self, process: asyncio.subprocess.Process) -> str | None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_LIMIT_S):
                line = await process.stdout.readline()
            return str(json.loads(line)["url"])
        except (TimeoutError, ValueError, KeyError, TypeError):
            return None

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(4096):
            self._last_words.extend(line[:300] for line in data.decode("utf-8", "replace").splitlines() if line)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(STOP_WAIT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        descriptor = pass_to_child({KEY_NAME: self.key})
        try:
            environment = child_environment(Path(__file__).parent.parent)
            environment[PARENT_ENVIRONMENT] = str(os.getpid())
            environment[DESCRIPTOR_VARIABLE] = str(descriptor)
            # One core is left to the rest: threads that wait for one another on a busy core are many times slower.
            threads = min(MAX_THREADS, max(1, (os.cpu_count() or 1) - 1))
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "provider_service.embedded_model"),
                *("--context", str(CONTEXT_WINDOW), "--threads", str(threads)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[descriptor],
                env=environment,
            )
        finally:
            os.close(descriptor)


def _source(base_url: str) -> Source:
    return Source(
        name=NAME,
        base_url=base_url,
        model=MODEL_NAME,
        context_window=CONTEXT_WINDOW,
        max_concurrent=1,
        tools=False,
        embedded=True,
        max_tokens=MAX_ANSWER_TOKENS,
    )
