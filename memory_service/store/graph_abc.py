"""What the memory service asks of a store for facts, scenes and media; :mod:`.abc` has the rest, and the rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from memory_service.graph.model import (
    Changed,
    Committed,
    Corrected,
    Correction,
    Criteria,
    Fact,
    FactCandidate,
    GraphQuestion,
    GraphStats,
    Holder,
    MediaBlock,
    MediaCheck,
    Observed,
    Recollection,
    Relation,
    Scene,
    SceneMember,
    Snapshot,
    Telling,
)
from memory_service.model import Term


class GraphStore(Protocol):
    """Keeps facts: a subject, a relation, an object, each fact once for each audience."""

    async def commit(self, facts: Sequence[Fact], telling: Telling) -> Committed:
        """Store facts in one transaction, at most :data:`~memory_service.graph.model.MAX_FACTS`; twice changes nothing.

        A fact that stands there already keeps its source and confidence. Its turn's event may be stored later: it is
        linked when it comes. What comes from an event that was forgotten is refused.

        :raises Invalid: there are too many
        """

    async def to_graph(self, document: str, facts: Sequence[Fact]) -> Committed:
        """Move a document and its events into the graph, with the facts that were found in it, in one transaction.

        The events stay searchable. Each fact of an archive names the event that it came from.

        :param document: the document's id
        :raises NotFound: there is no such document
        :raises Conflict: none of the facts can be stored; the document stays what it is
        :raises Invalid: there are too many facts; others can be committed before
        """

    async def recall(self, question: GraphQuestion, audience: Collection[str] | None) -> Recollection:
        """Find what is named and what has words of the question, and go along the relations from what is named.

        At most 2,000 relations are followed, of a busy entity the most certain or, if asked so, the newest 500.

        :param audience: only facts that every one of these principals may see; None for all, which only an operator
            may ask for; never empty
        """

    async def find_facts(
        self, terms: Sequence[Term], audience: Collection[str] | None, limit: int
    ) -> tuple[FactCandidate, ...]:
        """Find facts that hold by words, best first; see :meth:`.abc.EventStore.find`."""

    async def facts_by_number(
        self, numbers: Collection[int], audience: Collection[str] | None
    ) -> Mapping[int, Relation]:
        """Return those of the facts that hold and that every one of the principals may see."""

    async def snapshot(self, name: str, audience: Collection[str] | None, limit: int = 20) -> Snapshot | None:
        """Say what is on record of an entity now, as this audience may see it; None if nothing is."""

    async def introspect(self, audience: Collection[str] | None) -> GraphStats:
        """Count what an audience can see."""

    async def merge(self, source: str, target: str, audience: Collection[str]) -> Changed:
        """Let all that is known of one entity be known of another, and the first one vanish; nothing of others moves.

        Of facts that say the same then, the oldest stays.

        :raises NotFound: the audience sees no fact about one of them
        :raises Invalid: they are one already
        """

    async def edit(self, correction: Correction, telling: Telling, audience: Collection[str]) -> Corrected:
        """Let a fact take the place of another, with its confidence, sentence and scenes; the old one holds until now.

        :param telling: when and in which turn; the audience of the fact stays
        :raises NotFound: the audience sees no such fact
        :raises Invalid: it would not be a fact any more
        """

    async def delete_entity(self, name: str, audience: Collection[str], *, hard: bool = False) -> Changed:
        """Delete all that the audience sees of an entity, from sight or for good.

        :raises NotFound: it sees nothing of it
        """

    async def purge(self, criteria: Criteria, audience: Collection[str], *, hard: bool = False) -> Changed:
        """Delete the facts that fit and that the audience sees, from sight or for good.

        :raises Invalid: the criteria are empty, so that every fact would fit
        """


class SceneStore(Protocol):
    """Keeps recurring situations, those of each audience apart, and what belongs to them."""

    async def declare(self, key: str, visible_to: Collection[str], shared: bool) -> Scene:
        """Make a scene by its name; again, and it is stronger.

        :raises Invalid: the key is empty or too long
        """

    async def observe(self, features: Iterable[str], visible_to: Collection[str], shared: bool) -> Observed:
        """Take note of a situation: it strengthens the scene that it belongs to, or founds one when it occurs again.

        :param features: such as ``chan:webui``, ``peer:ann``, ``tool:calendar``, ``topic:garden``, ``part:morning``
        """

    async def evoked(self, features: Iterable[str], audience: Collection[str]) -> tuple[tuple[Scene, float], ...]:
        """Return the scenes that a situation brings to mind, with how similar they are, best first."""

    async def join(
        self, key: str, kind: str, id: str, weight: float, visible_to: Collection[str], shared: bool
    ) -> None:
        """Make an event, document or relation a member of a scene; of two weights the greater stays.

        :raises NotFound: there is no such scene or member
        :raises Invalid: the weight is not above 0 and at most 1, or the kind is another
        """

    async def members(self, key: str, audience: Collection[str], limit: int = 50) -> tuple[SceneMember, ...]:
        """Return what belongs to a scene and all narrower ones and may be seen, by weight."""

    async def decay(self) -> int:
        """Halve what was not seen for 30 days, at most once in 30 days; returns how many weights were let go."""


class MediaStore(Protocol):
    """Keeps bytes once each, and what they belong to: a block has one holder, whose audience may see it.

    No tool uses it yet.
    """

    async def put(self, content: bytes, mime: str, holder: Holder, caption: str = "") -> MediaBlock:
        """Store bytes for a holder, at most 64 MiB; the same again changes nothing.

        :raises Invalid: there are none, or too many
        :raises NotFound: there is no such holder
        """

    async def read(self, id: str, audience: Collection[str] | None) -> tuple[MediaBlock, bytes]:
        """Return a block with its bytes, which are checked.

        :raises NotFound: there is none that every one of the principals may see
        :raises Unavailable: also if the bytes are damaged
        """

    async def held_by(self, holder: Holder, audience: Collection[str] | None) -> tuple[MediaBlock, ...]:
        """Return what belongs to a holder and may be seen, the oldest first."""

    async def move(self, ids: Collection[str], holder: Holder) -> int:
        """Give blocks to another holder, in one transaction; returns how many moved.

        :raises NotFound: there is no such holder
        :raises Conflict: others than before would see them there
        """

    async def drop(self, ids: Collection[str]) -> int:
        """Delete blocks, and their bytes if no other block has the same; returns how many blocks there were."""

    async def discard(self, digests: Collection[str]) -> int:
        """Delete the bytes of those digests that no block has; returns how many files there were."""

    async def verify(self) -> MediaCheck:
        """Compare what is stored with what should be; reads every byte."""

    async def clean_up(self) -> int:
        """Delete the files that belong to no block, such as a crash leaves; returns how many there were."""
