"""The tables of ``memory.db``, step by step. A released step is never changed; new ones are added at the end."""

from __future__ import annotations

from homeagent_sdk.migrations import Migration
from memory_service.store.event_words import write_all_words
from memory_service.words.tokenizer import FTS5

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
    Migration(
        2,
        "tiers, documents, graph, vectors, scenes, media",
        f"""
        -- A set of principals, each set once; 0 is the whole household. Whatever can be recalled has an audience, so
        -- that who may see it is one number, and what a question may see is a short list of numbers.
        CREATE TABLE audience (
            number INTEGER PRIMARY KEY,
            members TEXT NOT NULL UNIQUE CHECK (json_valid(members))
        ) STRICT;
        INSERT INTO audience VALUES (0, '[]');
        CREATE TABLE audience_member (
            principal TEXT NOT NULL,
            audience INTEGER NOT NULL REFERENCES audience (number) ON DELETE CASCADE,
            PRIMARY KEY (principal, audience)
        ) STRICT, WITHOUT ROWID;
        INSERT INTO audience (members)
            SELECT json_group_array(v.principal ORDER BY v.principal)
            FROM event_visibility v JOIN event e ON e.number = v.event WHERE NOT e.shared GROUP BY v.event
            -- What nobody may see is not for everybody.
            UNION SELECT json_array(e.principal) FROM event e
            WHERE NOT e.shared AND e.number NOT IN (SELECT event FROM event_visibility);
        INSERT INTO audience_member SELECT m.value, a.number FROM audience a, json_each(a.members) m;

        -- A group of archived events, which point to it, or a note that was written on purpose. Its events are its
        -- content; `content` is that of a note.
        CREATE TABLE document (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL CHECK (kind IN ('archive', 'note')),
            tier TEXT NOT NULL DEFAULT 'document' CHECK (tier IN ('document', 'graph')),
            audience INTEGER NOT NULL REFERENCES audience (number),
            principal TEXT NOT NULL,
            -- From when to when its events happened; for a note, when it was written.
            first_time REAL NOT NULL,
            last_time REAL NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            -- Deliberate reads only: what recall shows by itself must not keep a document warm.
            reads INTEGER NOT NULL DEFAULT 0,
            last_read REAL,
            source_event TEXT,
            tags TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(tags)),
            summary TEXT NOT NULL,
            content TEXT NOT NULL
        ) STRICT;
        CREATE INDEX document_by_tier ON document (tier, last_read);
        CREATE INDEX document_by_source ON document (source_event) WHERE source_event IS NOT NULL;
        CREATE VIRTUAL TABLE document_words USING fts5 (
            summary, content, tags, content = '', contentless_delete = 1, tokenize = "{FTS5}"
        );
        CREATE VIRTUAL TABLE document_vocabulary USING fts5vocab (document_words, row);

        ALTER TABLE event RENAME TO event_1;
        CREATE TABLE event (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            channel TEXT NOT NULL,
            conversation TEXT NOT NULL,
            principal TEXT NOT NULL,
            speaker TEXT NOT NULL,
            time REAL NOT NULL,
            origin TEXT NOT NULL CHECK (origin IN ('user', 'self')),
            audience INTEGER NOT NULL REFERENCES audience (number),
            tier TEXT NOT NULL DEFAULT 'context' CHECK (tier IN ('context', 'document', 'graph')),
            document INTEGER REFERENCES document (number),
            -- Estimated, of what the prompt would show of it.
            tokens INTEGER NOT NULL,
            created REAL NOT NULL,
            -- What may be long comes last, so that a question of who may see a row does not read through it.
            tools_used TEXT NOT NULL CHECK (json_valid(tools_used)),
            input TEXT NOT NULL,
            response TEXT NOT NULL,
            tool_results TEXT NOT NULL CHECK (json_valid(tool_results)),
            CHECK ((tier = 'context') = (document IS NULL))
        ) STRICT;
        INSERT INTO event SELECT
            e.number, e.id, e.channel, e.conversation, e.principal, e.speaker, e.time, e.origin,
            CASE WHEN e.shared THEN 0 ELSE (SELECT a.number FROM audience a WHERE a.members = coalesce((
                SELECT json_group_array(v.principal ORDER BY v.principal) FROM event_visibility v
                WHERE v.event = e.number GROUP BY v.event), json_array(e.principal))) END,
            'context', NULL, estimated_tokens(e.input) + estimated_tokens(e.response), e.created, e.tools_used, e.input,
            e.response, e.tool_results
            FROM event_1 e;
        DROP TABLE event_vocabulary;
        DROP TABLE event_words;
        DROP TABLE event_visibility;
        DROP TABLE event_1;
        CREATE INDEX event_by_lane ON event (channel, conversation, time);
        CREATE INDEX event_by_time ON event (time);
        CREATE INDEX event_by_audience ON event (audience, time);
        CREATE INDEX event_in_context ON event (principal, time) WHERE tier = 'context';
        CREATE INDEX event_by_document ON event (document) WHERE document IS NOT NULL;

        -- What is written here was cut into tokens before (memory_service/words/tokenizer.py).
        CREATE VIRTUAL TABLE event_words USING fts5 (
            said, reply, tools, about, content = '', contentless_delete = 1, tokenize = "{FTS5}"
        );
        CREATE VIRTUAL TABLE event_vocabulary USING fts5vocab (event_words, row);
        -- Its parts are merged between transactions (memory_service/store/tidying.py), not inside whichever one crosses
        -- a limit; only if those fall far behind, all at once.
        INSERT INTO event_words (event_words, rank) VALUES ('automerge', 0), ('crisismerge', 200);

        -- What the texts speak of. An entity is a name; what is known of it stands in relations, and only there. Each
        -- audience has its own, so that not even the spelling of a name tells what others spoke of.
        CREATE TABLE entity (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            key TEXT NOT NULL,
            audience INTEGER NOT NULL REFERENCES audience (number),
            name TEXT NOT NULL,
            type TEXT NOT NULL DEFAULT '',
            created REAL NOT NULL,
            UNIQUE (key, audience)
        ) STRICT;
        CREATE INDEX entity_by_audience ON entity (audience, key);
        CREATE TABLE relation (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            subject INTEGER NOT NULL REFERENCES entity (number),
            type TEXT NOT NULL,
            object INTEGER NOT NULL REFERENCES entity (number),
            status TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'superseded', 'deleted')),
            -- That of its subject and object.
            audience INTEGER NOT NULL REFERENCES audience (number),
            principal TEXT NOT NULL,
            confidence REAL NOT NULL DEFAULT 1.0 CHECK (confidence BETWEEN 0 AND 1),
            -- Since when it holds and until when; `created` is when it was written down.
            valid_from REAL NOT NULL,
            valid_to REAL,
            superseded_by INTEGER REFERENCES relation (number) ON DELETE SET NULL,
            created REAL NOT NULL,
            origin TEXT NOT NULL CHECK (origin IN ('person', 'model', 'rule')),
            session TEXT NOT NULL DEFAULT '',
            -- The turn in which it was told, and its event, which is stored later than what is told in the turn.
            source TEXT,
            source_event INTEGER REFERENCES event (number) ON DELETE SET NULL,
            sentence TEXT NOT NULL DEFAULT ''
        ) STRICT;
        -- The same fact is never stored twice, however often it is told.
        CREATE UNIQUE INDEX relation_holds ON relation (subject, type, object) WHERE status = 'active';
        CREATE INDEX relation_by_subject ON relation (subject, type);
        CREATE INDEX relation_by_object ON relation (object);
        CREATE INDEX relation_by_source ON relation (source_event) WHERE source_event IS NOT NULL;
        CREATE INDEX relation_without_event ON relation (source) WHERE source_event IS NULL AND source IS NOT NULL;
        CREATE INDEX relation_by_successor ON relation (superseded_by) WHERE superseded_by IS NOT NULL;
        CREATE VIRTUAL TABLE relation_words USING fts5 (
            subject, type, object, sentence, content = '', contentless_delete = 1, tokenize = "{FTS5}"
        );
        CREATE VIRTUAL TABLE relation_vocabulary USING fts5vocab (relation_words, row);

        -- Vectors of different spaces are never compared.
        CREATE TABLE vector_space (
            number INTEGER PRIMARY KEY,
            fingerprint TEXT NOT NULL UNIQUE,
            encoder TEXT NOT NULL,
            dimensions INTEGER NOT NULL,
            -- When it came into use last.
            opened REAL NOT NULL
        ) STRICT;
        CREATE TABLE vector (
            space INTEGER NOT NULL REFERENCES vector_space (number) ON DELETE CASCADE,
            kind TEXT NOT NULL CHECK (kind IN ('event', 'document', 'relation', 'media')),
            item INTEGER NOT NULL,
            part TEXT NOT NULL,
            code BLOB NOT NULL,
            UNIQUE (kind, item, space, part)
        ) STRICT;
        -- What has no vector yet, in the space in use; written together with the item itself.
        CREATE TABLE embedding_queue (
            kind TEXT NOT NULL,
            item INTEGER NOT NULL,
            PRIMARY KEY (kind, item)
        ) STRICT, WITHOUT ROWID;
        INSERT INTO embedding_queue SELECT 'event', number FROM event;

        -- Bytes lie in a folder by digest; a block has one holder, and moves with it.
        CREATE TABLE media_block (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            digest TEXT NOT NULL,
            mime TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            holder_kind TEXT NOT NULL CHECK (holder_kind IN ('event', 'document', 'entity')),
            holder INTEGER NOT NULL,
            created REAL NOT NULL,
            caption TEXT NOT NULL DEFAULT ''
        ) STRICT;
        CREATE INDEX media_by_digest ON media_block (digest);
        CREATE INDEX media_by_holder ON media_block (holder_kind, holder);

        -- Like entities, each audience has its own: keys and features speak of what was spoken of.
        CREATE TABLE scene (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            audience INTEGER NOT NULL REFERENCES audience (number),
            key TEXT NOT NULL,
            origin TEXT NOT NULL CHECK (origin IN ('declared', 'emergent')),
            strength REAL NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            UNIQUE (audience, key)
        ) STRICT;
        CREATE TABLE scene_feature (
            scene INTEGER NOT NULL REFERENCES scene (number) ON DELETE CASCADE,
            feature TEXT NOT NULL,
            weight REAL NOT NULL,
            updated REAL NOT NULL,
            PRIMARY KEY (scene, feature)
        ) STRICT, WITHOUT ROWID;
        -- How often a situation was seen that is no scene yet; of what it was, a digest says enough.
        CREATE TABLE scene_evidence (
            audience INTEGER NOT NULL REFERENCES audience (number),
            label BLOB NOT NULL,
            count INTEGER NOT NULL,
            updated REAL NOT NULL,
            PRIMARY KEY (audience, label)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE scene_member (
            scene INTEGER NOT NULL REFERENCES scene (number) ON DELETE CASCADE,
            kind TEXT NOT NULL CHECK (kind IN ('event', 'document', 'relation', 'media')),
            item INTEGER NOT NULL,
            weight REAL NOT NULL,
            updated REAL NOT NULL,
            PRIMARY KEY (scene, kind, item)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX scene_member_by_item ON scene_member (kind, item);

        -- What was forgotten stays so, also if it is told again: of each event its id's digest, and nothing else.
        -- Unsettled: traces of it may be left outside the tables.
        CREATE TABLE forgotten (
            id BLOB PRIMARY KEY,
            time REAL NOT NULL,
            is_settled INTEGER NOT NULL DEFAULT 0 CHECK (is_settled IN (0, 1))
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX forgotten_unsettled ON forgotten (is_settled) WHERE is_settled = 0;
        CREATE TRIGGER event_stays_forgotten BEFORE INSERT ON event
            WHEN EXISTS (SELECT 1 FROM forgotten) AND EXISTS (SELECT 1 FROM forgotten WHERE id = digest_of(NEW.id))
            BEGIN SELECT RAISE(IGNORE); END;
        CREATE TABLE media_to_delete (
            digest TEXT PRIMARY KEY
        ) STRICT, WITHOUT ROWID;

        -- How far the readable log of conversations has come: what lies beyond `bytes` of `file` was not confirmed.
        CREATE TABLE conversation_log (
            only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
            event INTEGER NOT NULL,
            file TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            opened REAL NOT NULL
        ) STRICT;
        """,
        then=write_all_words,
    ),
)
