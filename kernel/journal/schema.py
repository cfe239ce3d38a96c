"""The tables of ``journal.db``. A released migration is never edited: add another one."""

from __future__ import annotations

from homeagent_sdk.migrations import Migration

MIGRATIONS = (
    Migration(
        1,
        "turns and conversations",
        """
        CREATE TABLE turns (
            sequence INTEGER PRIMARY KEY AUTOINCREMENT,
            turn_id TEXT NOT NULL UNIQUE,
            channel TEXT NOT NULL,
            conversation TEXT NOT NULL,
            principal TEXT NOT NULL,
            delivery_id TEXT,
            accepted_at REAL NOT NULL,
            step TEXT NOT NULL,
            frame BLOB NOT NULL,
            schema_version INTEGER NOT NULL,
            outcome TEXT,
            text TEXT NOT NULL,
            answer TEXT,
            result BLOB,
            finished_at REAL,
            no_memory INTEGER NOT NULL DEFAULT 0,
            remembered INTEGER NOT NULL DEFAULT 0,
            attempts INTEGER NOT NULL DEFAULT 0,
            UNIQUE (channel, delivery_id)
        ) STRICT;
        CREATE INDEX turns_of_lane ON turns (channel, conversation, sequence);
        CREATE INDEX turns_unfinished ON turns (sequence) WHERE outcome IS NULL;
        CREATE INDEX turns_unremembered ON turns (sequence)
            WHERE remembered = 0 AND no_memory = 0 AND outcome IN ('answer', 'error', 'stopped');
        CREATE INDEX turns_by_end ON turns (finished_at) WHERE outcome IS NOT NULL;

        CREATE TABLE conversations (
            channel TEXT NOT NULL,
            principal TEXT NOT NULL,
            conversation TEXT NOT NULL,
            title TEXT NOT NULL,
            last_time REAL NOT NULL,
            PRIMARY KEY (channel, principal, conversation)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX conversations_by_time ON conversations (channel, principal, last_time);
        """,
    ),
    Migration(
        2,
        "turns that were forgotten",
        """
        -- Their texts are gone; what is left shows that they were accepted, and had their outcome.
        ALTER TABLE turns ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
        """,
    ),
)
