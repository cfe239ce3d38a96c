"""memory_commit, memory_edit, memory_merge, memory_delete_entity and memory_purge: what changes facts.

Each says what it did, exactly: a model that is told of a failure that was none spoils good names to please it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from homeagent_sdk.errors import Invalid
from memory_service.fields import Fields
from memory_service.graph.model import (
    MAX_FACTS,
    MODEL,
    Changed,
    Committed,
    Correction,
    Criteria,
    Fact,
    Refused,
    Telling,
)
from memory_service.store.abc import Store
from memory_service.tools.registry import Asking, MemoryTool
from memory_service.tools.writing import counted

_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_MODE: Final[Mapping[str, Any]] = {"type": "string", "enum": ["soft", "hard"]}
_SHOWN_REFUSALS: Final = 5
_FIELDS: Final = {"type": "relation", "sentence": "sentence_text", "scenes": "scene"}
"""What fields of a fact are called in the arguments, where the names differ."""


def change_tools(store: Store, written: Callable[[], None], wall_clock: Callable[[], float]) -> tuple[MemoryTool, ...]:
    """Return the tools that change facts; for the parameters see :func:`memory_service.tools.graph.graph_tools`."""
    changes = GraphChanges(store, written, wall_clock)
    triple = {
        "type": "object",
        "properties": {name: dict(_TEXT) for name in ("subject", "relation", "object", "sentence_text", "scene")},
        "required": ["subject", "relation", "object"],
    }
    return (
        MemoryTool(
            "memory_commit",
            "Remember facts.",
            {"triples": {"type": "array", "items": triple, "maxItems": MAX_FACTS}, "scene": _TEXT},
            changes.commit,
            required=("triples",),
            idempotent=True,
        ),
        MemoryTool(
            "memory_edit",
            "Replace a fact by what holds now; the old one stays as history.",
            dict.fromkeys(
                ("old_subject", "old_relation", "old_object", "new_subject", "new_relation", "new_object"), _TEXT
            ),
            changes.edit,
            required=("old_subject", "old_relation", "old_object"),
            idempotent=True,
        ),
        MemoryTool(
            "memory_merge",
            "Make two names one: source becomes target, for good.",
            {"source": _TEXT, "target": _TEXT},
            changes.merge,
            required=("source", "target"),
        ),
        MemoryTool(
            "memory_delete_entity",
            "Delete all facts about a name.",
            {"name": _TEXT, "mode": _MODE},
            changes.delete_entity,
            required=("name",),
        ),
        MemoryTool(
            "memory_purge",
            "Delete the facts that fit all that is given.",
            {
                **dict.fromkeys(("subject", "relation_type", "target", "subject_contains", "target_contains"), _TEXT),
                "mode": _MODE,
            },
            changes.purge,
        ),
    )


class GraphChanges:
    """The tools; each of its methods answers a call, see :data:`memory_service.tools.registry.Run`."""

    def __init__(self, store: Store, written: Callable[[], None], wall_clock: Callable[[], float]) -> None:
        self._store = store
        self._written = written
        self._wall_clock = wall_clock

    async def commit(self, arguments: Fields, asking: Asking) -> str:
        """Store facts for those who read the answer."""
        triples = arguments.each("triples")
        if not 0 < len(triples) <= MAX_FACTS:
            raise arguments.wrong("triples", f"must be 1 to {MAX_FACTS} facts, not {len(triples)}")
        scene = arguments.text("scene", default="")
        committed = await self._store.graph.commit([_fact(each, scene) for each in triples], self._telling(asking))
        self._written()
        return _receipt(committed)

    async def edit(self, arguments: Fields, asking: Asking) -> str:
        """Replace a fact."""
        subject, relation, object = (arguments.text(f"old_{part}") for part in _PARTS)
        new = tuple(arguments.text(f"new_{part}") if arguments.has(f"new_{part}") else None for part in _PARTS)
        if not any(new):
            raise Invalid(
                "nothing is to change", field="new_object", hint="give new_subject, new_relation or new_object"
            )
        correction = Correction((subject, relation, object), (new[0], new[1], new[2]))
        corrected = await self._store.graph.edit(correction, self._telling(asking), asking.audience)
        self._written()
        told = "; ".join(dict.fromkeys(f"{old.statement} → {now.statement}" for old, now in corrected.pairs))
        return told if corrected.is_new else f"so already: {told}"

    async def merge(self, arguments: Fields, asking: Asking) -> str:
        """Make two entities one."""
        source, target = _given(arguments, "source"), _given(arguments, "target")
        changed = await self._store.graph.merge(source, target, asking.audience)
        self._written()
        doubles = f", {changed.dropped} dropped since they said nothing new" if changed.dropped else ""
        return f"{source} is {target} now: {counted(changed.relations, 'fact')} moved{doubles}"

    async def delete_entity(self, arguments: Fields, asking: Asking) -> str:
        """Delete what is known of an entity."""
        name, is_hard = _given(arguments, "name"), _is_hard(arguments)
        return _deleted(await self._store.graph.delete_entity(name, asking.audience, hard=is_hard), is_hard)

    async def purge(self, arguments: Fields, asking: Asking) -> str:
        """Delete facts by what they say."""
        names = ("subject", "relation_type", "target", "subject_contains", "target_contains")
        given = [_given(arguments, name) if arguments.has(name) else None for name in names]
        if not any(given):
            raise Invalid(f"say which facts to delete: {', '.join(names)}", field="subject")
        is_hard = _is_hard(arguments)
        return _deleted(await self._store.graph.purge(Criteria(*given), asking.audience, hard=is_hard), is_hard)

    def _telling(self, asking: Asking) -> Telling:
        return Telling(
            principal=asking.principal,
            visible_to=tuple(sorted(set(asking.audience))),
            shared=False,
            time=self._wall_clock(),
            origin=MODEL,
            session=f"{asking.channel}/{asking.conversation}",
            source=asking.turn_id,
        )


_PARTS = ("subject", "relation", "object")


def _fact(triple: Fields, scene: str) -> Fact:
    key = triple.text("scene", default="") or scene
    return Fact(
        subject=triple.text("subject"),
        type=triple.text("relation"),
        object=triple.text("object"),
        sentence=triple.text("sentence_text", default=""),
        scenes=(key,) if key.strip() else (),
    )


def _receipt(committed: Committed) -> str:
    refused = [_refusal(each) for each in committed.refused]
    if refused and not committed.new and not committed.known:
        first = committed.refused[0]
        raise Invalid(f"no fact was stored: {_some(refused)}", field=_field(first))
    parts = [f"{len(committed.new)} stored"]
    parts += [f"{len(committed.known)} known already"] if committed.known else []
    parts += [f"{len(refused)} refused: {_some(refused)}"] if refused else []
    return ", ".join(parts)


def _field(refused: Refused) -> str:
    return f"triples.{refused.index}.{_FIELDS.get(refused.field, refused.field)}"


def _refusal(refused: Refused) -> str:
    return f"{_field(refused)} {refused.reason}"


def _some(refusals: list[str]) -> str:
    more = f"; and {len(refusals) - _SHOWN_REFUSALS} more" if len(refusals) > _SHOWN_REFUSALS else ""
    return "; ".join(refusals[:_SHOWN_REFUSALS]) + more


def _deleted(changed: Changed, is_hard: bool) -> str:
    if not changed.relations:
        return "no fact fits; nothing was deleted"
    how = " for good" if is_hard else ""
    examples = "; ".join(changed.examples)
    more = "; …" if changed.relations > len(changed.examples) else ""
    return f"{counted(changed.relations, 'fact')} deleted{how}: {examples}{more}"


def _given(arguments: Fields, name: str) -> str:
    text = arguments.text(name).strip()
    if not text:
        raise arguments.wrong(name, "is empty")
    return text


def _is_hard(arguments: Fields) -> bool:
    mode = arguments.text("mode", default="soft")
    if mode not in ("soft", "hard"):
        raise arguments.wrong("mode", "must be soft or hard")
    return mode == "hard"
