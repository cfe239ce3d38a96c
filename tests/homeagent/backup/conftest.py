"""A data directory as a HomeAgent leaves it that was stopped, and killed while it wrote."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from homeagent.backup.contents import DATABASES
from homeagent_sdk.migrations import Migration, migrate
from homeagent_sdk.paths import DataDir


def write_database(path: Path, schema: int, *notes: str) -> None:
    """Make a database with so many migrations, or add to it; the last note is in the write-ahead log alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    migrations = [Migration(1, "notes", "CREATE TABLE note (words TEXT) STRICT")]
    migrations += [Migration(n, f"step {n}", f"CREATE TABLE t{n} (x)") for n in range(2, schema + 1)]
    migrate(connection, migrations)
    for note in notes:
        connection.execute("INSERT INTO note VALUES (?)", (note,))
    # As kill -9 would leave it: the connection is never closed, the files are copied while it is open.
    files = {path.with_name(path.name + suffix) for suffix in ("", "-wal")}
    contents = {file: file.read_bytes() for file in files}
    connection.close()
    for file, content in contents.items():
        file.write_bytes(content)


def notes_of(path: Path) -> list[str]:
    """Return the notes in a database."""
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT words FROM note ORDER BY rowid")]
    finally:
        connection.close()


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data").create()
    for name, schema in DATABASES.items():
        write_database(data.root / name, schema, f"{name} one", f"{name} two")
    for name, content in (
        ("memory/media/ab/abcd", "a picture"),
        ("memory/conversations/2026-12-01.jsonl", "{}\n"),
        ("provider/adapters/mine.lua", "-- mine"),
        ("provider/keys/deepseek", "sk-secret"),
        ("plugin_data/timer/timers.json", "[]"),
        ("keys/operator.key", "0" * 64),
    ):
        path = data.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    write_database(data.plugin_data / "diary" / "diary.sqlite", 1, "dear diary")
    return data
