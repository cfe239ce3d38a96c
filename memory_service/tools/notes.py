"""doc_commit: a text that the model keeps on purpose."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from memory_service.fields import Fields
from memory_service.model import Note
from memory_service.store.abc import Store
from memory_service.tools.registry import Asking, MemoryTool
from memory_service.tools.writing import beginning

MAX_NOTE_CHARACTERS: Final = 20_000
_SUMMARY_CHARACTERS: Final = 100
_MAX_SUMMARY_CHARACTERS: Final = 500
_MAX_TAGS: Final = 20
_MAX_TAG_CHARACTERS: Final = 50


class NoteTool:
    """The tool.

    :param written: called when there is a new note
    :param wall_clock: seconds since 1970
    """

    def __init__(self, store: Store, written: Callable[[], None], wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._written = written
        self._wall_clock = wall_clock

    def tool(self) -> MemoryTool:
        """Return it for the registry."""
        return MemoryTool(
            "doc_commit",
            "Keep a note for good.",
            {
                "content": {"type": "string"},
                "summary": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            self.run,
            required=("content",),
            parallel_safe=True,
            idempotent=True,
        )

    async def run(self, arguments: Fields, asking: Asking) -> str:
        """Write a note that those who read the answer may see; the same one in the same turn is written once."""
        content = _content_of(arguments)
        digest = hashlib.sha256("\0".join((asking.turn_id, content)).encode()).hexdigest()
        note = Note(
            id=f"note-{digest[:32]}",
            principal=asking.principal,
            visible_to=tuple(sorted(set(asking.audience))),
            shared=False,
            time=self._wall_clock(),
            content=content,
            summary=_summary_of(arguments) or beginning(content, _SUMMARY_CHARACTERS),
            tags=_tags_of(arguments),
            source_event=asking.turn_id,
        )
        if not await self._store.documents.write_note(note):
            return f"already there: {note.id}"
        self._written()
        return f"stored {note.id}"


def _content_of(arguments: Fields) -> str:
    content = arguments.text("content").strip()
    if not content:
        raise arguments.wrong("content", "is empty")
    if len(content) > MAX_NOTE_CHARACTERS:
        most = f"at most {MAX_NOTE_CHARACTERS} are allowed: make several notes of it"
        raise arguments.wrong("content", f"has {len(content)} characters, {most}")
    return content


def _summary_of(arguments: Fields) -> str:
    summary = arguments.text("summary", default="").strip()
    if len(summary) > _MAX_SUMMARY_CHARACTERS:
        raise arguments.wrong(
            "summary", f"has {len(summary)} characters, at most {_MAX_SUMMARY_CHARACTERS} are allowed"
        )
    return summary


def _tags_of(arguments: Fields) -> tuple[str, ...]:
    tags = arguments.names("tags")
    if len(tags) > _MAX_TAGS or any(len(tag) > _MAX_TAG_CHARACTERS for tag in tags):
        raise arguments.wrong("tags", f"must be at most {_MAX_TAGS}, of {_MAX_TAG_CHARACTERS} characters each at most")
    return tags
