"""The readable log of conversations: one line of JSON an event, in files by day, always in step with the store."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from homeagent_sdk.errors import HomeAgentError
from homeagent_sdk.paths import flush
from memory_service.model import Event, LogPosition
from memory_service.store.abc import LogStore

SETTING: Final = "core.memory.conversation_log"
MOST_BYTES: Final = 10_000_000
"""A file that would become longer is left as it is, and another one of the same day begun."""

_GATHER_S = 0.25
_EVENTS = 500
_CHARACTERS = 1_000_000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_OFF: Final = ""
_NONE_YET: Final = "-"
"""What a position has for the name of a file where there is none: the log is off, or nothing was written so far."""

_DAY_CHARACTERS: Final = len("2026-12-01")
_log = structlog.get_logger("conversation_log")

Forgotten = Callable[[Collection[str]], Awaitable[frozenset[str]]]


class ConversationLog:
    """Writes what is stored into the log, in the background.

    The store keeps how far the log has come: number of the last event, file and length. A batch is appended behind
    that length, flushed to the disk, and then confirmed; what a crash left behind the length is written over. So no
    line is lost and none stands twice.

    :param folder: where the files lie: ``2026-12-01.jsonl``, ``2026-12-01-2.jsonl``, ….
    :param wall_clock: seconds since 1970; its local day names the files
    """

    def __init__(
        self,
        store: LogStore,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._folder = folder
        self._most_bytes = most_bytes
        self._now = wall_clock
        self._is_on: bool | None = None
        self._position: LogPosition | None = None
        self._busy = asyncio.Lock()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._folder

    async def apply(self, settings: dict[str, Any]) -> None:
        """Take over what is set; nothing is written before this was called once."""
        self._is_on = bool(settings.get(SETTING, True))
        self._wake.set()

    def wake(self) -> None:
        """There are new events."""
        self._wake.set()

    def start(self) -> None:
        """Begin with what is not in the log yet."""
        self._wake.set()
        self._task = asyncio.create_task(self._work(), name="conversation-log")

    async def stop(self) -> None:
        """Stop; the rest is written after the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def catch_up(self) -> None:
        """Write what is not in the log yet, if it is on.

        :raises OSError: the files cannot be written
        :raises Unavailable: the store cannot be read or written
        """
        async with self._busy:
            if self._is_on is None:
                return
            position = await self._current()
            if not self._is_on:
                if position.file != _OFF:
                    await self._confirm(LogPosition(await self._store.newest(), _OFF, 0, self._now()))
                return
            if position.file == _OFF:
                # What happened while the log was off is not in it.
                position = await self._confirm(replace(position, event=await self._store.newest(), file=_NONE_YET))
            while found := await self._store.following(position.event, _EVENTS, _CHARACTERS):
                position = await self._write(position, found)

    async def forget(self, forgotten: Forgotten) -> int:
        """Take the lines of forgotten events out of every file; returns how many there were.

        :param forgotten: says which of some ids are those of forgotten events; asked for every line, so that all of
            this may be repeated at any time
        """
        removed = 0
        async with self._busy:
            position = await self._current()
            for path in await asyncio.to_thread(self._files):
                if gone := await _forgotten_in(path, forgotten):
                    size = await asyncio.to_thread(_write_without, path, gone)
                    removed += len(gone)
                    if path.name == position.file:
                        await self._confirm(replace(position, bytes=size))
        return removed

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._wake.wait()
            # What comes in a burst shares one flush.
            await asyncio.sleep(_GATHER_S)
            self._wake.clear()
            try:
                await self.catch_up()
                pause_s = _FIRST_PAUSE_S
            except (HomeAgentError, OSError) as error:
                _log.warning("the log of conversations is behind", reason=str(error), again_in_s=pause_s)
                self._wake.set()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _current(self) -> LogPosition:
        """Return the position, and cut off what a crash left behind it."""
        if self._position is not None:
            return self._position
        position = await self._store.position() or LogPosition(0, _NONE_YET, 0, self._now())
        self._position = await asyncio.to_thread(self._recovered, position)
        return self._position

    async def _confirm(self, position: LogPosition) -> LogPosition:
        await self._store.confirm(position)
        self._position = position
        return position

    async def _write(self, position: LogPosition, found: Sequence[tuple[int, Event]]) -> LogPosition:
        """Append as many of the events as the file takes, and confirm them."""
        lines = await asyncio.to_thread(lambda: [line_of(event) for _, event in found])
        if self._is_full(position, len(lines[0])):
            position = await self._confirm(await asyncio.to_thread(self._next_file, position))
        count, size = 0, position.bytes
        while count < len(lines) and (size == 0 or size + len(lines[count]) <= self._most_bytes):
            size += len(lines[count])
            count += 1
        path = self._folder / position.file
        await asyncio.to_thread(_append, path, position.bytes, b"".join(lines[:count]))
        return await self._confirm(replace(position, event=found[count - 1][0], bytes=size))

    def _is_full(self, position: LogPosition, more: int) -> bool:
        if position.file == _NONE_YET or _day(self._now()) > position.file[:_DAY_CHARACTERS]:
            return True
        return position.bytes > 0 and position.bytes + more > self._most_bytes

    def _next_file(self, position: LogPosition) -> LogPosition:
        """Choose a name that sorts behind the file in use, also if the clock went back."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        last = position.file[:_DAY_CHARACTERS] if position.file != _NONE_YET else ""
        day = max(_day(self._now()), last)
        names = itertools.chain([f"{day}.jsonl"], (f"{day}-{number}.jsonl" for number in itertools.count(2)))
        free = next(name for name in names if not (self._folder / name).exists())
        return LogPosition(position.event, free, 0, self._now())

    def _recovered(self, position: LogPosition) -> LogPosition:
        for left in self._folder.glob(".*.partial"):
            left.unlink()
        path = self._folder / position.file
        if position.file in (_OFF, _NONE_YET):
            return position
        if not path.exists():
            if position.bytes == 0:
                return position
            _log.warning("a file of the log of conversations is gone", path=str(path))
            return replace(position, file=_NONE_YET, bytes=0)
        size = path.stat().st_size
        if size > position.bytes:
            os.truncate(path, position.bytes)
        # Shorter: lines were taken out of it, and the machine stopped before that could be recorded.
        return replace(position, bytes=min(size, position.bytes))

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))


def line_of(event: Event) -> bytes:
    """Return the line of an event."""
    fields = {
        "id": event.id,
        "time": _moment(event.time),
        "channel": event.channel,
        "conversation": event.conversation,
        "principal": event.principal,
        "speaker": event.speaker,
        "text": event.input,
        "reply": event.response,
        "tools": list(event.tools_used),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _moment(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    try:
        return moment.astimezone().isoformat()
    except OverflowError:
        # The last day of the year 9999, east of Greenwich.
        return moment.isoformat()


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _append(path: Path, length: int, content: bytes) -> None:
    """Write behind ``length``, over whatever stands there, and flush it to the disk."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.truncate(length)
        file.seek(length)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        flush(path.parent)


def _write_without(path: Path, gone: set[str]) -> int:
    """Replace a file by one without the lines of some events; returns its length."""
    partial = path.with_name(f".{path.name}.partial")
    with path.open("rb") as old, open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new:
        for line in old:
            if _id_of(line) not in gone:
                new.write(line)
        new.flush()
        os.fsync(new.fileno())
        size = new.tell()
    partial.replace(path)
    flush(path.parent)
    return size


async def _forgotten_in(path: Path, forgotten: Forgotten) -> set[str]:
    gone: set[str] = set()
    with await asyncio.to_thread(path.open, "rb") as file:
        while ids := await asyncio.to_thread(_ids, file, _EVENTS):
            gone |= await forgotten(ids)
    return gone


def _ids(file: Any, count: int) -> list[str]:
    return [_id_of(line) for line in itertools.islice(file, count)]


def _id_of(line: bytes) -> str:
    """Return the id in a line; a line that somebody else wrote has none."""
    try:
        fields = json.loads(line)
    except ValueError:
        return ""
    return str(fields.get("id", "")) if isinstance(fields, dict) else ""
