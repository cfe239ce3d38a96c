"""What plugins print, line by line into ``log/plugin-<name>.log``: bounded in rate, in memory and on disk."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from pathlib import Path

from homeagent_sdk.logging import LOG_FILE_BYTES, LOG_FILES, get_logger, mask

_READ_BYTES = 64 * 1024
_WINDOW_S = 0.25
_WINDOW_BYTES = 256 * 1024
"""Beyond this, a pipe is left unread until the window is over: the plugin waits, not the supervisor."""
_LINES_A_SECOND = 200
_BURST_LINES = 1000
_LINE_BYTES = 256
"""So many bytes count as one line of the budget: 50 KB a second, 256 KB at once."""
_LONGEST_LINE_BYTES = 8 * 1024
_WAITING_LINES = 2000
_FLUSH_S = 0.2
_TAIL_LINES = 20
_TAIL_LINE_CHARACTERS = 500
_log = get_logger("plugin_log")


class LineBudget:
    """Lets 200 lines a second pass, 1000 at once, and counts what it holds back."""

    def __init__(self, now: float) -> None:
        self._tokens = float(_BURST_LINES)
        self._then = now
        self.held_back = 0

    def allow(self, now: float, size_bytes: int = 0) -> bool:
        """Tell whether one more line may pass; a long one counts as many."""
        self._tokens = min(_BURST_LINES, self._tokens + (now - self._then) * _LINES_A_SECOND)
        self._then = now
        if self._tokens < 1:
            self.held_back += 1
            return False
        self._tokens -= 1 + size_bytes // _LINE_BYTES
        return True


class PluginLog:
    """The log of one plugin, over all its processes.

    :param path: the file; turned over like those of the services
    """

    def __init__(self, name: str, path: Path) -> None:
        self._service = f"plugin-{name}"
        self._path = path
        self._budget = LineBudget(time.monotonic())
        self._waiting: deque[str] = deque(maxlen=_WAITING_LINES)
        self._errors: deque[str] = deque(maxlen=_TAIL_LINES)

    def add(self, line: bytes, stream: str) -> None:
        """Take one line of stdout or stderr."""
        decoded = line.decode(errors="replace").rstrip()
        if stream == "stderr" and decoded:
            self._errors.append(_readable(decoded)[:_TAIL_LINE_CHARACTERS])
        if not self._budget.allow(time.monotonic(), len(line)):
            return
        if self._budget.held_back:
            self._note(f"{self._budget.held_back} lines held back: it prints too much")
            self._budget.held_back = 0
        if len(self._waiting) == _WAITING_LINES:
            self._budget.held_back += 1
        self._waiting.append(self._as_json(decoded, stream))

    def errors(self) -> list[str]:
        """Return the last lines of stderr since :meth:`forget_errors`."""
        return list(self._errors)

    def forget_errors(self) -> None:
        """A new process begins."""
        self._errors.clear()

    def take(self) -> list[str]:
        """Return the lines that wait to be written, and forget them."""
        lines = list(self._waiting)
        self._waiting.clear()
        return lines

    def write(self, lines: list[str]) -> None:
        """Append lines to the file. Called in a thread."""
        try:
            self._turn_over_if_full()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            _log.warning("a plugin's log cannot be written", path=str(self._path), reason=str(error), lines=len(lines))

    def _note(self, event: str) -> None:
        self._waiting.append(self._as_json(event, "host"))

    def _as_json(self, line: str, stream: str) -> str:
        if line.startswith("{") and _is_log_line(line):
            return line
        body = {"time": round(time.time(), 6), "level": "info", "service": self._service, "event": mask(line)}
        return json.dumps({**body, "stream": stream}, ensure_ascii=False)

    def _turn_over_if_full(self) -> None:
        try:
            if self._path.stat().st_size < LOG_FILE_BYTES:
                return
        except FileNotFoundError:
            return
        for number in range(LOG_FILES - 1, 0, -1):
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(self._path.with_name(f"{self._path.name}.{number}"))


def _is_log_line(line: str) -> bool:
    try:
        body = json.loads(line)
    except ValueError:
        return False
    return isinstance(body, dict) and "event" in body and "time" in body


def _readable(line: str) -> str:
    """Return the part of a line of the log that a person needs to see why a plugin crashed."""
    if not line.startswith("{") or not _is_log_line(line):
        return str(mask(line))
    body = json.loads(line)
    last = str(body.get("exception", "")).strip().splitlines()[-1:]
    return " ".join([str(body["event"]), *last])


class PipeReader:
    """Reads one pipe of a plugin process, as fast as the log's window allows."""

    def __init__(self, descriptor: int, log: PluginLog, stream: str) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._log = log
        self._stream = stream
        self._partial = b""
        self._window_ends = 0.0
        self._left_bytes = _WINDOW_BYTES
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._is_open = True
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Read what is there, once, and close: whoever else holds the other end is not waited for."""
        if not self._is_open:
            return
        self._left_bytes = _WINDOW_BYTES
        while self._is_open and self._left_bytes > 0 and self._take_chunk():
            pass
        self._end()

    def _read(self) -> None:
        now = self._loop.time()
        if now >= self._window_ends:
            self._window_ends = now + _WINDOW_S
            self._left_bytes = _WINDOW_BYTES
        self._take_chunk()
        if self._is_open and self._left_bytes <= 0:
            self._loop.remove_reader(self._descriptor)
            self._resume = self._loop.call_at(self._window_ends, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        if self._is_open:
            self._loop.add_reader(self._descriptor, self._read)

    def _take_chunk(self) -> bool:
        """Read once; False if there was nothing, or the other end is closed."""
        try:
            chunk = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._end()
            return False
        self._left_bytes -= len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._log.add(line[:_LONGEST_LINE_BYTES], self._stream)
        while len(self._partial) > _LONGEST_LINE_BYTES:
            self._log.add(self._partial[:_LONGEST_LINE_BYTES], self._stream)
            self._partial = self._partial[_LONGEST_LINE_BYTES:]
        return True

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._partial:
            self._log.add(self._partial, self._stream)
            self._partial = b""


def _write_all(taken: list[tuple[PluginLog, list[str]]]) -> None:
    for log, lines in taken:
        log.write(lines)


class LogWriter:
    """Writes the logs of all plugins, five times a second, in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[str, PluginLog] = {}
        self._task: asyncio.Task[None] | None = None

    def log_of(self, name: str) -> PluginLog:
        """Return the log of a plugin."""
        if name not in self._logs:
            self._logs[name] = PluginLog(name, self._folder / f"plugin-{name}.log")
        return self._logs[name]

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="plugin-logs")

    async def stop(self) -> None:
        """Write what is left and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Write what waits."""
        taken = [(log, lines) for log in list(self._logs.values()) if (lines := log.take())]
        if taken:
            await asyncio.to_thread(_write_all, taken)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_S)
            await self.flush()
