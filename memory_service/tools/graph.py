"""memory_recall and memory_introspect: what is known, as the model may tell those who read its answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from memory_service.fields import Fields
from memory_service.graph.model import RECENT, RELEVANCE, GraphQuestion, Recollection, Relation
from memory_service.model import Hit, Recalled, estimated_tokens
from memory_service.recall.candidates import EVENT, FACT
from memory_service.recall.recall import Recall
from memory_service.store.abc import Store
from memory_service.tools.archive import NOT_PROOF
from memory_service.tools.arguments import query_of
from memory_service.tools.graph_changes import change_tools
from memory_service.tools.registry import Asking, MemoryTool
from memory_service.tools.writing import BUDGET_TOKENS, Budget, counted, joined, moment
from memory_service.words.question import terms
from memory_service.words.segmenter import Segmenter

_DEEPEST: Final = 4
_FACT_TOKENS: Final = BUDGET_TOKENS // 3
_HITS: Final = 8
_NEAREST: Final = 3
_SNAPSHOT_FACTS: Final = 5
_BETWEEN: Final = re.compile(r"[,，、;；\n]+")


def graph_tools(
    store: Store,
    recall: Recall,
    segmenter: Segmenter,
    written: Callable[[], None],
    wall_clock: Callable[[], float] = time.time,
) -> tuple[MemoryTool, ...]:
    """Return the tools around facts.

    :param written: called when there are new facts
    :param wall_clock: seconds since 1970
    """
    reading = GraphReading(store, recall, segmenter)
    return (*reading.tools(), *change_tools(store, written, wall_clock))


class KnownFacts:
    """Says in lines what is known now of what a text names; made anew for each question, for those who ask."""

    def __init__(self, store: Store, segmenter: Segmenter) -> None:
        self._store = store
        self._segmenter = segmenter

    async def __call__(self, query: str, audience: Collection[str]) -> Sequence[str]:
        """Return the facts nearest to the names in the query; none if it names nothing that is known."""
        question = await _question(query, self._segmenter, depth=1, relations=_SNAPSHOT_FACTS)
        found = await self._store.graph.recall(question, audience)
        return _lines(found) if found.is_named else ()


class GraphReading:
    """The tools that read."""

    def __init__(self, store: Store, recall: Recall, segmenter: Segmenter) -> None:
        self._store = store
        self._recall = recall
        self._segmenter = segmenter

    def tools(self) -> tuple[MemoryTool, ...]:
        """Return them for the registry."""
        recall = MemoryTool(
            "memory_recall",
            "Look up what you know: facts, conversations, notes.",
            {
                "query_intent": {"type": "string", "description": "names or words, commas between them"},
                "depth": {"type": "integer", "minimum": 1, "maximum": _DEEPEST, "default": 2},
                "sort": {"type": "string", "enum": [RELEVANCE, RECENT]},
            },
            self.recall,
            required=("query_intent",),
            parallel_safe=True,
            idempotent=True,
            always=True,
        )
        introspect = MemoryTool(
            "memory_introspect",
            "How many facts you know, and about whom most.",
            {},
            self.introspect,
            parallel_safe=True,
            idempotent=True,
        )
        return recall, introspect

    async def recall(self, arguments: Fields, asking: Asking) -> str:
        """Answer a call; see :data:`memory_service.tools.registry.Run`."""
        query, sort = query_of(arguments, "query_intent", "name what to look for"), _sort_of(arguments)
        question = await _question(query, self._segmenter, depth=arguments.number("depth", 2, 1, _DEEPEST), sort=sort)
        found = await self._store.graph.recall(question, asking.audience)
        facts = _within(_lines(found))
        recalled = await self._recall.recall(
            query,
            asking.audience,
            exclude=(asking.turn_id, *(relation.id for relation in found.relations)),
            limit=_HITS,
            budget_tokens=BUDGET_TOKENS - sum(map(estimated_tokens, facts)),
        )
        if recalled.no_record and not found.is_named:
            return _nothing(query, recalled)
        return _written(query, facts, len(found.relations) + found.omitted, recalled, sort)

    async def introspect(self, arguments: Fields, asking: Asking) -> str:
        """Answer a call; see :data:`memory_service.tools.registry.Run`."""
        stats = await self._store.graph.introspect(asking.audience)
        busiest = ", ".join(f"{name} {degree}" for name, degree in stats.busiest)
        return joined(
            [
                f"{counted(stats.relations, 'fact')} about {counted(stats.entities, 'name')};"
                f" {stats.superseded} older ones were replaced.",
                f"Facts by name: {busiest}" if busiest else "",
            ]
        )


async def _question(
    query: str, segmenter: Segmenter, *, depth: int, sort: str = RELEVANCE, relations: int = 10
) -> GraphQuestion:
    asked = await asyncio.to_thread(terms, query, segmenter)
    return GraphQuestion(_BETWEEN.split(query), asked, depth, sort, relations=relations)


def _sort_of(arguments: Fields) -> str:
    sort = arguments.text("sort", default=RELEVANCE)
    if sort not in (RELEVANCE, RECENT):
        raise arguments.wrong("sort", f"must be {RELEVANCE} or {RECENT}")
    return sort


def _written(query: str, facts: Sequence[str], known: int, recalled: Recalled, sort: str) -> str:
    more = [f"- {hit.text} ({_day(hit.time)})" for hit in recalled.hits if hit.kind == FACT and not recalled.no_record]
    hits = [hit for hit in recalled.hits if hit.kind != FACT]
    if sort == RECENT:
        hits.sort(key=lambda hit: -hit.time)
    shown = [*facts, *more]
    left_out = max(known - len(facts), 0)
    rest = f"- {counted(left_out, 'more fact')}: ask more narrowly" if left_out else ""
    said = [] if recalled.no_record else [_hit_text(hit) for hit in hits]
    return joined(
        [
            "\n".join(filter(None, ["Facts:", *shown, rest])) if shown else "",
            "\n".join(["Said and noted:", *said]) if said else "",
            f"Beyond that, nothing on record about {query!r}." if recalled.no_record else "",
            f"{counted(recalled.omitted, 'more match', 'more matches')} did not fit." if recalled.omitted else "",
        ]
    )


def _nothing(query: str, recalled: Recalled) -> str:
    nearest = [_hit_text(hit) for hit in recalled.hits[:_NEAREST]]
    return joined(
        [
            f"Nothing on record about {query!r}. {NOT_PROOF}",
            "\n".join(["Nearest, but not about it:", *nearest]) if nearest else "",
        ]
    )


def _within(lines: Sequence[str]) -> list[str]:
    budget = Budget(_FACT_TOKENS)
    return [line for line in lines if budget.takes(line)]


def _lines(found: Recollection) -> list[str]:
    return [_line(relation, found.former.get(relation.id, ())) for relation in found.relations]


def _line(relation: Relation, former: Sequence[Relation]) -> str:
    subject = _with_type(relation.subject, relation.subject_type)
    object = _with_type(relation.object, relation.object_type)
    sentence = f": “{relation.sentence}”" if relation.sentence else ""
    before = "; ".join(f"until {_day(each.valid_to or relation.valid_from)}: {each.statement}" for each in former)
    return (
        f"- {subject} {relation.type} {object} ({_day(relation.valid_from)}{f'; {before}' if before else ''}){sentence}"
    )


def _hit_text(hit: Hit) -> str:
    if hit.kind != EVENT:
        return f"- {hit.kind.capitalize()} of {moment(hit.time)}: {hit.text.strip()}"
    reply = f"\n  → you: {hit.reply.strip()}" if hit.reply.strip() else ""
    return f"- [{moment(hit.time)}] {hit.speaker} by {hit.channel}: {hit.text.strip()}{reply}"


def _with_type(name: str, type: str) -> str:
    return f"{name} [{type}]" if type else name


def _day(seconds: float) -> str:
    return moment(seconds)[:10]
