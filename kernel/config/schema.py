"""The tables of ``config.db``: settings, who may speak, and the persona. A released migration is never edited."""

from __future__ import annotations

from pathlib import Path

from homeagent_sdk.migrations import Migration
from kernel.database import Database

MIGRATIONS = (
    Migration(
        1,
        "settings and principals",
        """
        CREATE TABLE settings (
            key TEXT PRIMARY KEY,
            value TEXT NOT NULL, -- JSON
            changed_at REAL NOT NULL
        ) STRICT, WITHOUT ROWID;

        CREATE TABLE plugin_settings (
            plugin TEXT PRIMARY KEY,
            definitions TEXT NOT NULL -- JSON
        ) STRICT, WITHOUT ROWID;

        CREATE TABLE principals (
            principal TEXT PRIMARY KEY,
            name TEXT NOT NULL UNIQUE COLLATE NOCASE,
            role TEXT NOT NULL CHECK (role IN ('owner', 'member')),
            created REAL NOT NULL
        ) STRICT, WITHOUT ROWID;
        INSERT INTO principals VALUES ('owner', 'owner', 'owner', unixepoch());

        CREATE TABLE keys (
            sha256 BLOB PRIMARY KEY,
            principal TEXT NOT NULL REFERENCES principals ON DELETE CASCADE,
            created REAL NOT NULL,
            is_imported INTEGER NOT NULL DEFAULT 0
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX keys_of_principal ON keys (principal);
        """,
    ),
    Migration(
        2,
        "persona",
        """
        CREATE TABLE persona (
            version INTEGER PRIMARY KEY, -- the highest is in force; the one before it is kept
            content TEXT, -- NULL: the setting core.agent.personal_prompt counts
            origin TEXT NOT NULL, -- who set it: conversation, command, file, personal.md
            changed_at REAL NOT NULL
        ) STRICT;

        CREATE TABLE persona_choice (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            mode TEXT CHECK (mode IN ('default', 'custom', 'later')), -- NULL: nobody has chosen
            decided_at REAL,
            file_sha256 BLOB -- of personal.md, as it was imported last
        ) STRICT;
        INSERT INTO persona_choice (only) VALUES (1);
        """,
    ),
)


def config_database(path: Path) -> Database:
    """Return ``config.db`` for the registry and the principals, to be opened by the kernel at start."""
    return Database(path, MIGRATIONS)
