"""Media: bytes in a folder by their digest, and rows that say to what they belong.

Bytes come before their row and go after it. So a crash in between leaves at most a file that no row speaks of, which
:meth:`SqliteMedia.verify` names and :meth:`SqliteMedia.clean_up` deletes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import apsw

from homeagent_sdk.catalogue import text
from homeagent_sdk.errors import Conflict, Invalid, NotFound, Unavailable
from homeagent_sdk.paths import flush
from memory_service.graph.model import Holder, MediaBlock, MediaCheck
from memory_service.graph.names import key_of
from memory_service.store.audiences import number_of
from memory_service.store.database import Database
from memory_service.store.graph_rows import IN, Sight

MAX_BYTES = 64 * 1024 * 1024
"""So large a block may be."""

_COLUMNS = "b.id, b.digest, b.mime, b.bytes, b.caption"
_AUDIENCE = (
    "CASE b.holder_kind WHEN 'event' THEN (SELECT audience FROM event WHERE number = b.holder)"
    " WHEN 'document' THEN (SELECT audience FROM document WHERE number = b.holder)"
    " ELSE (SELECT audience FROM entity WHERE number = b.holder) END"
)
_SEEN = f"(SELECT {_COLUMNS}, b.number, b.holder_kind, b.holder, {_AUDIENCE} AS audience FROM media_block b) b"


class SqliteMedia:
    """Implements :class:`memory_service.store.graph_abc.MediaStore`.

    :param folder: where the bytes lie; made when it is needed
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        # Between its bytes and its row a block must not look like one that nothing holds.
        self._files = asyncio.Lock()

    async def put(self, content: bytes, mime: str, holder: Holder, caption: str = "") -> MediaBlock:
        """Store bytes; see :class:`memory_service.store.graph_abc.MediaStore`."""
        if not 0 < len(content) <= MAX_BYTES:
            raise Invalid(f"a block of {len(content)} bytes cannot be stored: 1 to {MAX_BYTES} are", field="content")
        digest = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
        async with self._files:
            await asyncio.to_thread(self._write, digest, content)
            return await self._database.write(
                lambda connection: _insert(connection, (digest, mime, len(content), caption), holder)
            )

    async def read(self, id: str, audience: Collection[str] | None) -> tuple[MediaBlock, bytes]:
        """Return a block with its bytes; see :class:`memory_service.store.graph_abc.MediaStore`."""

        def find(connection: apsw.Connection) -> MediaBlock | None:
            seen = Sight.of(connection, audience).on("b")
            row = connection.execute(f"SELECT {_COLUMNS} FROM {_SEEN} WHERE b.id = ? {seen}", (id,)).fetchone()
            return row and MediaBlock(*row)

        block = await self._database.read(find)
        if block is None:
            raise NotFound(f"there is no media block {id}", field="id")
        return block, await asyncio.to_thread(self._read, block.digest)

    async def held_by(self, holder: Holder, audience: Collection[str] | None) -> tuple[MediaBlock, ...]:
        """Return what belongs to something; see :class:`memory_service.store.graph_abc.MediaStore`."""

        def find(connection: apsw.Connection) -> tuple[MediaBlock, ...]:
            number = _number(connection, holder)
            seen = Sight.of(connection, audience).on("b")
            question = (
                f"SELECT {_COLUMNS} FROM {_SEEN} WHERE b.holder_kind = ? AND b.holder = ? {seen} ORDER BY b.number"
            )
            return tuple(MediaBlock(*row) for row in connection.execute(question, (holder.kind, number)))

        return await self._database.read(find)

    async def move(self, ids: Collection[str], holder: Holder) -> int:
        """Give blocks to another holder; see :class:`memory_service.store.graph_abc.MediaStore`."""
        return await self._database.write(lambda connection: _move(connection, ids, holder))

    async def drop(self, ids: Collection[str]) -> int:
        """Delete blocks; see :class:`memory_service.store.graph_abc.MediaStore`."""
        chosen = json.dumps(list(ids))

        def drop(connection: apsw.Connection) -> list[str]:
            rows = list(connection.execute(f"SELECT number, digest FROM media_block WHERE id {IN}", (chosen,)))
            numbers = json.dumps([number for number, _ in rows])
            for table in ("vector", "embedding_queue", "scene_member"):
                connection.execute(f"DELETE FROM {table} WHERE kind = 'media' AND item {IN}", (numbers,))
            connection.execute(f"DELETE FROM media_block WHERE number {IN}", (numbers,))
            return [digest for _, digest in rows]

        digests = await self._database.write(drop)
        await self.discard(set(digests))
        return len(digests)

    async def discard(self, digests: Collection[str]) -> int:
        """Delete bytes that nothing holds; see :class:`memory_service.store.graph_abc.MediaStore`."""
        async with self._files:
            held = await self._held(digests)
            return await asyncio.to_thread(_unlink, [self._path(each) for each in digests if each not in held])

    async def verify(self) -> MediaCheck:
        """Compare rows and files; see :class:`memory_service.store.graph_abc.MediaStore`."""
        async with self._files:
            held = await self._held(None)
            return await asyncio.to_thread(self._check, held)

    async def clean_up(self) -> int:
        """Delete files that no row speaks of; see :class:`memory_service.store.graph_abc.MediaStore`."""
        async with self._files:
            held = await self._held(None)
            return await asyncio.to_thread(lambda: _unlink(path for path in self._stored() if path.name not in held))

    async def _held(self, digests: Collection[str] | None) -> frozenset[str]:
        """Return which of the digests a row has; None: all that rows have."""
        among, values = ("", ()) if digests is None else (f" WHERE digest {IN}", (json.dumps(list(digests)),))
        return await self._database.read(
            lambda connection: frozenset(
                digest for (digest,) in connection.execute(f"SELECT DISTINCT digest FROM media_block{among}", values)
            )
        )

    def _path(self, digest: str) -> Path:
        return self._folder / digest[:2] / digest

    def _write(self, digest: str, content: bytes) -> None:
        """Write a file, whole and safe on the medium, or not at all."""
        path = self._path(digest)
        new = path.with_name(f".{digest}.{uuid.uuid4().hex}.new")
        try:
            if not path.exists() or path.stat().st_size != len(content):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(new, path)
            # Also if it is there already: whoever wrote it may have been killed before it came so far.
            for folder in (path.parent, self._folder, self._folder.parent):
                flush(folder)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise _failed(path, error) from error

    def _read(self, digest: str) -> bytes:
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _failed(path, error) from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise Unavailable(text("memory.media_damaged", path=path), hint=text("memory.media_damaged_hint"))
        return content

    def _stored(self) -> Iterator[Path]:
        return (path for path in self._folder.glob("*/*") if path.is_file())

    def _check(self, held: frozenset[str]) -> MediaCheck:
        stored = {path.name: path for path in self._stored()}
        damaged = [name for name in held & stored.keys() if _digest_of(stored[name]) != name]
        orphans = stored.keys() - held
        return MediaCheck(tuple(sorted(held - stored.keys())), tuple(sorted(damaged)), tuple(sorted(orphans)))


def _insert(connection: apsw.Connection, block: tuple[str, str, int, str], holder: Holder) -> MediaBlock:
    digest, mime, size, caption = block
    number = _number(connection, holder)
    if number is None:
        raise NotFound(f"there is no {holder.kind} {holder.id}", field="holder")
    seen = json.dumps([digest, holder.kind, number])
    id = f"media-{hashlib.sha256(seen.encode()).hexdigest()[:32]}"
    connection.execute(
        "INSERT INTO media_block (id, digest, mime, bytes, holder_kind, holder, created, caption)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (id, digest, mime, size, holder.kind, number, time.time(), caption),
    )
    return MediaBlock(*connection.execute(f"SELECT {_COLUMNS} FROM media_block b WHERE b.id = ?", (id,)).get)


def _move(connection: apsw.Connection, ids: Collection[str], holder: Holder) -> int:
    number = _number(connection, holder)
    if number is None:
        raise NotFound(f"there is no {holder.kind} {holder.id}", field="holder")
    audience = connection.execute(f"SELECT audience FROM {holder.kind} WHERE number = ?", (number,)).get
    chosen = json.dumps(list(ids))
    if connection.execute(f"SELECT 1 FROM {_SEEN} WHERE b.id {IN} AND b.audience <> ?", (chosen, audience)).get:
        raise Conflict("a block cannot move to where others would see it", field="holder")
    connection.execute(
        f"UPDATE media_block SET holder_kind = ?, holder = ? WHERE id {IN} AND (holder_kind, holder) <> (?, ?)",
        (holder.kind, number, chosen, holder.kind, number),
    )
    return connection.changes()


def _number(connection: apsw.Connection, holder: Holder) -> int | None:
    """Return the number of a holder, None if there is none."""
    if holder.kind not in ("event", "document", "entity"):
        raise Invalid(f"{holder.kind} cannot hold media", field="holder")
    if holder.kind == "entity":
        of = number_of(connection, holder.visible_to, holder.shared)
        question = "SELECT number FROM entity WHERE key = ? AND audience = ?"
        number = connection.execute(question, (key_of(holder.id), of)).get
    else:
        number = connection.execute(f"SELECT number FROM {holder.kind} WHERE id = ?", (holder.id,)).get
    return None if number is None else int(number)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unlink(paths: Iterable[Path]) -> int:
    """Delete files; when this returns, a power cut does not bring them back."""
    count = 0
    folders: set[Path] = set()
    for path in paths:
        folders.add(path.parent)
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _failed(path, error) from error
        count += 1
    for folder in folders:
        try:
            flush(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _failed(folder, error) from error
    return count


def _failed(path: Path, error: OSError) -> Unavailable:
    detail = error.strerror or str(error)
    return Unavailable(text("memory.disk_error", path=path, error=detail), hint=text("memory.disk_error_hint"))
