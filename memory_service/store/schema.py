"""The tables of ``memory.db``, step by step. A released step is never changed; new ones are added at the end."""

from __future__ import annotations

from homeagent_sdk.migrations import Migration

MIGRATIONS = (
    Migration(
        1,
        "events, visibility, words",
        """
        -- One row for each turn, word for word. `tier` says who owns it now: moving it is an UPDATE, never a copy.
        CREATE TABLE event (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            channel TEXT NOT NULL,
            conversation TEXT NOT NULL,
            principal TEXT NOT NULL,
            speaker TEXT NOT NULL,
            time REAL NOT NULL,
            origin TEXT NOT NULL CHECK (origin IN ('user', 'self')),
            shared INTEGER NOT NULL CHECK (shared IN (0, 1)),
            tier TEXT NOT NULL DEFAULT 'context' CHECK (tier IN ('context', 'document', 'graph')),
            created REAL NOT NULL,
            -- What may be long comes last, so that a question of who may see a row does not read through it.
            tools_used TEXT NOT NULL CHECK (json_valid(tools_used)),
            input TEXT NOT NULL,
            response TEXT NOT NULL,
            tool_results TEXT NOT NULL CHECK (json_valid(tool_results))
        ) STRICT;
        CREATE INDEX event_by_lane ON event (channel, conversation, time);
        CREATE INDEX event_by_time ON event (time);
        CREATE INDEX event_by_tier ON event (tier, time);

        -- Who may see an event that is not shared. An audience sees what every one of its members has a row for.
        CREATE TABLE event_visibility (
            event INTEGER NOT NULL REFERENCES event (number) ON DELETE CASCADE,
            principal TEXT NOT NULL,
            PRIMARY KEY (event, principal)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX visibility_by_principal ON event_visibility (principal, event);

        -- The index over words; rowid = event.number. The text itself stands in `event` only.
        CREATE VIRTUAL TABLE event_words USING fts5 (
            said, reply, tools, about,
            content = '', contentless_delete = 1, tokenize = 'homeagent'
        );
        CREATE VIRTUAL TABLE event_vocabulary USING fts5vocab (event_words, row);
        """,
    ),
)
